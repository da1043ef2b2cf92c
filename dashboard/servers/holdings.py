"""What the repository of a server holds that does not have to be ours: our models in it, others, and those that it lacks."""

from collections.abc import Collection, Set
from typing import TypedDict, cast

from dashboard.models import Server
from dashboard.servers.server_state import HOLDS

_NAMED = 20  # the most names that are kept of each kind


class Holdings(TypedDict):
    """ours, others: how many models of the repository have a name of ours, and how many do not. lacks: how many wanted models
    it does not have. names_*: some of them."""

    ours: int
    others: int
    lacks: int
    names_ours: list[str]
    names_others: list[str]
    names_lacks: list[str]


def holdings_of(held: Collection[str], models: Set[str], lacks: list[str]) -> Holdings:
    """Return what a repository holds. held: the names of its models. models: the names of all ours. lacks: the wanted models
    that are not in it."""
    ours = sorted(models & set(held))
    others = sorted(set(held) - set(ours))
    return {
        "ours": len(ours),
        "others": len(others),
        "lacks": len(lacks),
        "names_ours": ours[:_NAMED],
        "names_others": others[:_NAMED],
        "names_lacks": lacks[:_NAMED],
    }


def holdings(server: Server) -> Holdings | None:
    """Return what `watch` found last in a server's repository, or None for a bundled server and before the first look."""
    state = getattr(server, "state", None)
    return cast("Holdings | None", state.info.get(HOLDS)) if state is not None else None


def said_of(server: Server) -> str:
    """Return a sentence about the repository of a server; "" for a bundled one, and before the first look."""
    found = None if server.bundled else holdings(server)
    return holdings_in_words(found, driven=server.driven) if found else ""


def holdings_in_words(found: Holdings, *, driven: bool) -> str:
    """Say in a sentence or two what a repository holds, and what of it is ours."""
    total = found["ours"] + found["others"]
    said = f"Its repository holds {_models(total)}"
    if found["others"] and found["ours"]:
        said += f": {found['ours']} with a name of ours, {found['others']} of somebody else."
    elif found["others"]:
        said += ", none of them ours."
    else:
        said += ", all of them ours." if total else "."
    if driven and found["lacks"]:
        some = ", ".join(found["names_lacks"])
        more = " and more" if found["lacks"] > len(found["names_lacks"]) else ""
        said += f" It lacks {_models(found['lacks'])} that {'is' if found['lacks'] == 1 else 'are'} wanted here: {some}{more}."
    return said


def _models(count: int) -> str:
    return f"{count} model{'' if count == 1 else 's'}" if count else "no model"
