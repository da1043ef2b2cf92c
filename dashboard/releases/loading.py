"""What a server is to be told to load: the wanted release, and what served last and well while that one is not ready."""

from dataclasses import dataclass

from django.db import transaction

from dashboard.models import Model, ModelSync, Release, ReleaseCheck, Server
from dashboard.releases.overrides import wanted_override
from dashboard.releases.selectors import last_good, newest_release, same_content
from dashboard.releases.storage import on_disk, write_config
from dashboard.shared.choices import CheckState
from repository.config.document import NOTHING

_CANDIDATES = 3  # of what served well


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to load of a model, and in which order.

    wanted: None for a model that never had a release. override: what a load of it brings, "" for the folder's own.
    good: what served last and well, to be loaded where nothing of the model serves. good_first: before the wanted one, which
    has not passed on this server, or failed there last, where the model went away with the server: what is known to serve comes
    back without waiting. passed: on this server, so that it comes back without its golden requests after a restart.
    """

    wanted: Release | None
    override: str
    good: list[Release]
    good_first: bool
    passed: bool


def load_plan(*, model_id: int, server: Server, serves: bool) -> LoadPlan | None:
    """Return what to load; None where the model was deleted meanwhile. `serves`: something of it serves on the server."""
    model = Model.objects.filter(pk=model_id).first()
    if model is None:
        return None
    wanted = newest_release(model)
    if wanted is None:
        return LoadPlan(None, "", [], False, False)
    # What served on this server, else on the bundled one: another may be new.
    served = [] if serves else last_good(model, server) or last_good(model)
    good = [one for one in served if not same_content(one, wanted)][:_CANDIDATES]
    passed = ReleaseCheck.objects.filter(release=wanted.begun, server=server, state=CheckState.PASSED).exists()
    # Nobody took it out of service: an unload leaves none behind.
    went_away = ModelSync.objects.filter(server=server, model=model, release__isnull=False).exists()
    return LoadPlan(wanted, wanted_override(wanted), good, bool(good) and went_away and not passed, passed)


def needs_another_load(*, model_id: int, loading: Release | None) -> bool:
    """Whether what is wanted now takes another load than the one under way, which has begun for an earlier wish.

    Not where those versions stay and the wanted release has only what a server does beside them, other names or one more
    version, say: that comes behind the load, which may have taken long already. Asking for the same release again is asking for
    another load.
    """
    model = Model.objects.filter(pk=model_id).first()
    wanted = newest_release(model) if model else None
    if (
        wanted is None
        or loading is None
        or wanted.pk == loading.pk
        or not set(loading.versions) <= set(wanted.versions)
    ):
        return True
    return wanted.document.effect_after(loading.document) == "reload"


def folder_renew(*, model_id: int, server: Server) -> None:
    """Have the folder hold the text of the wanted release as it was made, and a server that serves an override read it again.

    A text of before there were releases has no stamp, by which a server says what it serves, and a person may have changed one.
    An override a server keeps until the model's files change, as Triton does: so the text is written once more. Nothing where
    somebody changed the text itself by hand. The model is locked only where there is something to write: whoever holds its lock
    may hang, and a server that came back waits for this.
    """
    overridden = ModelSync.objects.filter(server=server, model=model_id, override=True).exists()
    if not _to_renew(Model.objects.filter(pk=model_id).first(), overridden):
        return
    with transaction.atomic():
        model = Model.objects.select_for_update().filter(pk=model_id).first()
        newest = _to_renew(model, overridden)
        if model is not None and newest is not None:
            write_config(model, newest.text or NOTHING.stamped(newest.number))


def _to_renew(model: Model | None, overridden: bool) -> Release | None:
    """Return the newest release where its text is to be written once more."""
    newest = newest_release(model) if model is not None else None
    if model is None or newest is None:
        return None
    found = on_disk(model.name)
    same = found.document.same_text(newest.document)
    return newest if same and (overridden or (found.text or "") != newest.text) else None
