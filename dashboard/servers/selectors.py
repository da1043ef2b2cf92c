"""Reads of inference servers for pages and the API. Metrics history: metrics/selectors.py."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from dashboard.models import ModelState, Server, ServerEnvironment, ServerEvent, WatchLease
from dashboard.models.environment import PRODUCTION
from dashboard.servers.server_state import BUILD, PROCESSES, VERSION
from dashboard.servers.services import LOCAL
from dashboard.shared import heartbeat
from dashboard.shared.choices import EventKind, ServerStatus, version_word
from dashboard.shared.exceptions import Invalid, NotFound
from repository.core.server_version import is_compiled

ANSWERING = (ServerStatus.RUNNING, ServerStatus.READY)
_WENT_DOWN = (EventKind.CRASHED, EventKind.STOPPED, EventKind.UNREACHABLE)
_CAME_BACK = (EventKind.STARTED, EventKind.RESTARTED, EventKind.READY)


def servers() -> QuerySet[Server]:
    """Return the servers with their states, the bundled one first."""
    return Server.objects.select_related("state", "environment")


def production_servers() -> QuerySet[Server]:
    """Return the servers of production, whose reports decide the states of models, rollouts and objectives."""
    return servers().filter(of_production())


def driven_servers() -> QuerySet[Server]:
    """Return the servers of production that answer and that `watch` brings to what is wanted."""
    there = Server.objects.filter(of_production(), state__state__in=ANSWERING, leaving=False)
    return there.exclude(environment__driven=False).select_related("environment")


def of_production(path: str = "") -> Q:
    """Return the condition that a server is of production. path: leads from the row to the server, as `server__`."""
    unset = Q(**{f"{path}environment": None})  # by the last release, for as long as it runs beside this one
    return unset | Q(**{f"{path}environment__name": PRODUCTION})


def environment_of(server: Server) -> str:
    """Return the name of a server's environment."""
    return server.environment.name if server.environment else PRODUCTION


def server_get(name: str) -> Server:
    """Return a server. Raises NotFound if there is no server of that name."""
    try:
        return servers().get(name=name)
    except Server.DoesNotExist:
        raise NotFound(f"there is no server named '{name}'") from None


def server_asked(name: str = "") -> Server:
    """Return the server that gets requests of the dashboard: the named one, else the first of production, which is
    LOCAL if it is there. Raises NotFound if there is none."""
    if not name and (first := production_servers().first()):
        return first
    return server_get(name or LOCAL)


def offered_servers(rows: Iterable[Server]) -> list[tuple[str, str]]:
    """Return the names and labels of these servers, which a page offers for requests; [] if there is only LOCAL."""
    found = [(one.name, environment_of(one)) for one in rows]
    return [(name, f"{name}, {environment}") for name, environment in found] if [*dict(found)] != [LOCAL] else []


def servers_of(name: str) -> list[Server]:
    """Return the servers of an environment. Raises NotFound if there is none of that name."""
    if name == PRODUCTION:
        return list(production_servers())
    if not ServerEnvironment.objects.filter(name=name).exists():
        raise NotFound(f"there is no environment named '{name[:40]}'")
    return list(servers().filter(environment__name=name))


def servers_chosen(*, server: str = "", environment: str = "") -> list[Server]:
    """Return the named server, or the servers of the named environment: by default those of production.

    Raises NotFound for an unknown name, and Invalid if both are named.
    """
    if server and environment:
        raise Invalid("expected a server or an environment, not both")
    return [server_get(server)] if server else servers_of(environment or PRODUCTION)


def answers(server: Server) -> bool:
    """Return whether a server answered when `watch` last polled it."""
    state = getattr(server, "state", None)
    return state is not None and state.state in ANSWERING


class Running(NamedTuple):
    """A process of the dashboard. leads: whether it leads the watchers; None if it is none. The lease is that of the leader:
    its fencing number, and since when."""

    process: heartbeat.Process
    leads: bool | None
    lease_number: int | None
    leads_since: datetime | None


def processes() -> list[Running]:
    """Return the known processes of all machines."""
    lease = WatchLease.held()
    found = []
    for one in heartbeat.processes():
        leads = lease is not None and lease.holder.startswith(WatchLease.holder_of(one.host, one.pid))
        if one.name != "watch":
            found.append(Running(one, None, None, None))
        elif lease is None or not leads:
            found.append(Running(one, False, None, None))
        else:
            found.append(Running(one, True, lease.number, lease.since))
    return found


def server_events(*, server: Server | None = None, since: datetime | None = None) -> QuerySet[ServerEvent]:
    """Return the events of one server or of all servers, the newest first."""
    events = ServerEvent.objects.select_related("server")
    if server is not None:
        events = events.filter(server=server)
    return events.filter(at__gte=since) if since else events


def gpu_count(server: Server) -> int:
    """Return the number of GPUs in the server's last report."""
    state = getattr(server, "state", None)
    return len(state.info.get("gpus") or ()) if state is not None else 0


def running_code(server: Server) -> str:
    """Say whether a server runs compiled modules, and whether its next start will; "" if its version is unknown."""
    state = getattr(server, "state", None)
    if state is None or not isinstance(version := state.info.get(VERSION), str):
        return ""
    if is_compiled(version):
        return "runs compiled"
    processes = state.info.get(PROCESSES) if server.bundled else None
    build = processes.get(BUILD) if isinstance(processes, dict) else None
    if build is None:
        return "runs interpreted"
    return {
        "running": "runs interpreted; it is being compiled for its next start",
        "stopped": "runs interpreted; it is compiled for its next start",
        "down": f"runs interpreted, because compiling failed: {build['reason']}",
    }[build["state"]]


class Outage(NamedTuple):
    """A span of time in which a server did not answer and counted nothing. end: its end, or None while it lasts."""

    start: datetime
    end: datetime | None


def outages(servers: Iterable[Server], since: datetime, until: datetime) -> dict[int, list[Outage]]:
    """Return each server's outages that overlap a span of time, the oldest first, by its key, in one query."""
    kinds = (*_WENT_DOWN, *_CAME_BACK)
    events = ServerEvent.objects.filter(kind__in=kinds, process="", model_name="")
    before = events.filter(server=OuterRef("pk"), at__lt=since)
    keys = [server.pk for server in servers]
    last = Server.objects.filter(pk__in=keys).annotate(event=Subquery(before.values("pk")[:1])).values("event")
    told = events.filter(Q(pk__in=last) | Q(server__in=keys, at__gte=since, at__lte=until)).order_by("at", "id")
    found: dict[int, list[Outage]] = {key: [] for key in keys}
    down: dict[int, datetime] = {}
    for key, at, kind in told.values_list("server", "at", "kind"):
        if kind in _WENT_DOWN:
            down.setdefault(key, at)
        elif key in down:
            found[key].append(Outage(down.pop(key), at))
    for key, at in down.items():
        found[key].append(Outage(at, None))
    return found


def all_down() -> list[Server]:
    """Return all servers of production with their states if none of them answers; else []."""
    rows = list(production_servers())
    return [] if any(map(answers, rows)) else rows


class VersionCount(NamedTuple):
    """The number of versions of which a server reports a state, of those that are ready, and of those that failed."""

    ready: int
    total: int
    failed: int


def version_counts(servers: Iterable[Server]) -> dict[int, VersionCount]:
    """Return the VersionCount of each server by its key, in one query."""
    counts = {server.pk: VersionCount(0, 0, 0) for server in servers}
    rows = (
        ModelState.objects.filter(server__in=[*counts]).order_by().values_list("server", "state", "condition", "failed")
    )
    for key, state, condition, failed, number in rows.annotate(number=Count("pk")):
        count, word = counts[key], version_word(state, condition, failed)
        counts[key] = VersionCount(
            count.ready + number * (word == "ready"), count.total + number, count.failed + number * (word == "failed")
        )
    return counts


def model_states(*, server: Server | None = None, model_name: str = "") -> QuerySet[ModelState]:
    """Return the states of versions on servers: all, or those of one server or one model."""
    states = ModelState.objects.select_related("server")
    if server is not None:
        states = states.filter(server=server)
    return states.filter(model_name=model_name) if model_name else states
