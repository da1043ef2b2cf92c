"""Checks a server before or after it is added: that it answers, what it is, whether it lets itself be driven, what it holds."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from dashboard.access.authorisation import Actor, Right, require
from dashboard.fleet.services import server_add
from dashboard.models import Model, Server
from dashboard.servers.client import ServerClient, ServerConnections
from dashboard.servers.holdings import Holdings, holdings_in_words, holdings_of
from dashboard.servers.wanted import wanted_models
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden
from dashboard.shared.sealing import unseal

_CONTROL_EXTENSIONS = {"model_repository"}
_ONLY_LOADS_AT_START = "explicit model load / unload is not allowed"


@dataclass(slots=True)
class Check:
    """What a server answered.

    kind, version: what it says of itself, "" if it does not answer. problems: sentences, each with what to change: the server
    cannot do what its environment asks. advice: sentences about what could be better. holds: what its repository has.
    """

    kind: str = ""
    version: str = ""
    problems: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    holds: Holdings | None = None
    said: str = ""  # about its repository


CONNECTIONS = ServerConnections()


def server_add_checked(*, server: Server, actor: Actor, unchecked: bool = False) -> Server:
    """Add the row of services.server_new, if its check finds no problem or `unchecked`. Raises Conflict with the problems."""
    require(actor, Right.ADMINISTER)
    if not unchecked and (problems := check_server(server, CONNECTIONS).problems):
        raise Conflict("; ".join(problems))
    return server_add(server=server, actor=actor)


def check_server(server: Server, connections: ServerConnections) -> Check:
    """Ask a server, saved or not, what `watch` will ask of it. Nothing changes there. Takes up to 25 s if it hangs."""
    found = Check()
    try:
        _check(server, connections, found)
    except DashboardError as error:
        found.problems.append(error.message)
    return found


def _check(server: Server, connections: ServerConnections, found: Check) -> None:
    assert server.environment is not None
    if not server.bundled:
        unseal(server.environment.control_key)
    client = ServerClient(server, connections)
    metadata = client.metadata()
    found.kind, found.version = metadata.get("name", "") or "unnamed", metadata.get("version", "")
    if not _CONTROL_EXTENSIONS & set(metadata.get("extensions", [])):
        found.problems.append(
            f"it calls itself '{found.kind}', and has no model repository extension, so it is neither Slipway nor Triton"
        )
        return
    try:
        held = {row["name"] for row in client.index()}
    except Forbidden:
        found.problems.append(_refuses_key(server))
        return
    if server.driven:
        found.problems += _driving(server, client)
        found.advice += _open_control(server, connections)
    wanted = [one for one in wanted_models(server) if one.loaded]
    ours = set(Model.objects.values_list("name", flat=True))
    found.holds = holdings_of(held, ours, sorted(one.name for one in wanted if one.name not in held))
    found.said = holdings_in_words(found.holds, driven=server.driven)
    if server.driven and found.holds["others"] and not found.holds["ours"] and Model.objects.exists():
        found.advice.append("It holds another repository. Start it with the managed repository, or only observe it.")


def _driving(server: Server, client: ServerClient) -> Iterator[str]:
    """Yield what keeps a server from being driven, by the unload of a model that nobody has."""
    try:
        client.unload(f"slipway-check-{secrets.token_hex(8)}")
    except Forbidden:
        yield _refuses_key(server)
    except DashboardError as error:
        if _ONLY_LOADS_AT_START in error.message:
            yield "it does not take loads and unloads: start it with --model-control-mode=explicit"


def _open_control(server: Server, connections: ServerConnections) -> Iterator[str]:
    """Yield advice if everybody who reaches a server may control it."""
    if server.bundled:
        return
    try:
        ServerClient(_without_key(server), connections).index()
    except DashboardError:
        return
    said = "Everybody who reaches it may load and unload its models."
    yield f"{said} Start it with {_flag(server)}, and set the control key here."


def _without_key(server: Server) -> Server:
    """Return a copy of a server whose environment has no control key."""
    environment = server.environment
    assert environment is not None
    copied = type(environment)(
        **{one.attname: getattr(environment, one.attname) for one in environment._meta.concrete_fields}
    )
    copied.control_key = ""
    return Server(name=server.name, http_url=server.http_url, named_at=server.named_at, environment=copied)


def _refuses_key(server: Server) -> str:
    assert server.environment is not None
    if server.environment.control_key:
        return f"it refuses the control key: give {server.environment.name} the key of its flag {_flag(server)}"
    return f"it asks for a key: give {server.environment.name} the one that its --http-restricted-api names"


def _flag(server: Server) -> str:
    header = server.environment.control_header if server.environment is not None else ""
    return f"--http-restricted-api=model-repository:{header}=<key>"
