"""Finds what the default alerts about models, servers and processes are about."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.text import capfirst

from dashboard.alerts.facts import QUEUE_S, Facts, Finding
from dashboard.deployments.selectors import deployments
from dashboard.drift.selectors import drift_found
from dashboard.metrics.samples import FINE
from dashboard.metrics.server_loads import ServerLoad, server_loads
from dashboard.models import ModelState, Rollout, Server, ServerEvent, TruthMetric
from dashboard.models.environment import PRODUCTION
from dashboard.objectives.burn import span
from dashboard.objectives.selectors import bad_between
from dashboard.rollouts.selectors import rollouts_of_note
from dashboard.servers.selectors import environment_of, of_production
from dashboard.shared import heartbeat
from dashboard.shared.choices import (
    DeploymentState,
    DesiredState,
    EventKind,
    ModelStatus,
    RolloutState,
    ServerStatus,
    Severity,
)
from dashboard.templatetags.units import count

CRASHES, CRASHES_S = 3, 900
SKEW = 1.2  # times the mean of the servers of an environment
_LEAST_RPS = 10.0  # of the busiest server: at less, its share is chance
_STUCK = timedelta(minutes=15)  # a load that takes longer is told
_STARTING = timedelta(minutes=2)
_LEAST_QUEUE = 16  # a shorter queue is no trouble, however it grew
_GROWTH = 2.0
_MOST_COLUMNS = 5  # that a message names
FAILED, SLOWEST = "failed", "slowest"  # anchors of the tab Requests of a model


def requests_address(model_name: str, since: float, part: str, server: str = "") -> str:
    """Return the address of a model's requests from a moment on: its failures by cause, or its slowest requests."""
    chosen = {"from": int(since)} | ({"server": server} if server else {})
    return f"{reverse('model_requests', args=[model_name])}?{urlencode(chosen)}#{part}"


def charts_address(model_name: str, at: float, server: str = "") -> str:
    """Return the address of the charts of a model around a moment."""
    chosen = {"at": int(at)} | ({"server": server} if server else {})
    return f"{reverse('model', args=[model_name])}?{urlencode(chosen)}#charts"


def _log(model_name: str) -> str:
    return reverse("model_log", args=[model_name])


def burns(kind: str) -> Callable[[Facts], Iterator[Finding]]:
    """Return the finder of models whose budget burns by the rule of this kind."""

    def find(facts: Facts) -> Iterator[Finding]:
        for one, burn in facts.burning:
            if burn.rule.kind == kind:
                name = one.model.name
                bad = bad_between(one, facts.timestamp - burn.short_s, facts.timestamp)
                title = f"{name} spends its error budget {min(burn.long, burn.short):.3g} times too fast"
                detail = (
                    f"The objective is {one.in_words}. The burn rate is {burn.long:.3g} over {span(burn.rule.long_s)} and "
                    f"{burn.short:.3g} over {span(burn.short_s)}; from {burn.rule.factor:g} on, people are told. "
                    f"In the last {span(burn.short_s)}, {count(bad.failed)} requests failed"
                    f"{'' if one.latency_ms is None else f' and {count(bad.slow)} were too slow'}."
                )
                part = SLOWEST if bad.slow > bad.failed else FAILED
                address = requests_address(name, facts.timestamp - burn.rule.long_s, part)
                yield Finding(name, title, detail, address, name, opens=burn.burns)

    return find


def not_ready(facts: Facts) -> Iterator[Finding]:
    for row in facts.troubled:
        if row.state == "failed" and row.model.desired_state == DesiredState.LOADED:
            yield Finding(row.name, f"{row.name} is not ready", row.reason, _log(row.name), row.name)
    named = {row.name for row in facts.troubled}
    wanted = {one.name for one in facts.standings if one.state == "loading" and not one.serves} - named
    rows = ModelState.objects.filter(of_production("server__"), state=ModelStatus.LOADING)
    rows = rows.filter(updated_at__lt=facts.now - _STUCK, model_name__in=wanted)
    for name in sorted(set(rows.values_list("model_name", flat=True))) if wanted else ():
        detail = f"It has been loading for more than {_STUCK.seconds // 60} minutes."
        yield Finding(name, f"{name} is not ready", detail, _log(name), name)


def load_failed(facts: Facts) -> Iterator[Finding]:
    for row in facts.troubled:
        if row.state == "degraded" and row.instead is None and not row.rolling_out:
            title = f"{row.name} serves, but not as it should"
            yield Finding(row.name, title, row.reason, _log(row.name), row.name)


def serves_instead(facts: Facts) -> Iterator[Finding]:
    for row in facts.troubled:
        if row.state == "degraded" and row.instead is not None and row.wanted is not None and not row.rolling_out:
            title = f"{row.name} serves release {row.instead.number} in place of release {row.wanted.number}"
            address = reverse("release", args=[row.name, row.instead.number]) + "#back"
            yield Finding(row.name, title, row.reason, address, row.name)


def crashes(facts: Facts) -> Iterator[Finding]:
    since = facts.now - timedelta(seconds=CRASHES_S)
    rows = ServerEvent.objects.filter(kind=EventKind.CRASHED, at__gte=since)
    for (server, process), times in Counter(rows.values_list("server__name", "process")).items():
        if times >= CRASHES:
            what = process or server
            last = rows.filter(server__name=server, process=process).order_by("-at", "-pk").first()
            title = f"{what} crashed {times} times in {CRASHES_S // 60} minutes"
            yield Finding(what, title, last.message if last else "", reverse("server", args=[server]))


def server_down(facts: Facts) -> Iterator[Finding]:
    for server in facts.servers:
        state = getattr(server, "state", None)
        if state is None or server.leaving:
            continue
        slow = state.state == ServerStatus.STARTING and state.started_at and state.started_at < facts.now - _STARTING
        if state.state == ServerStatus.DOWN or slow:
            address = reverse("server", args=[server.name])
            of = "" if environment_of(server) == PRODUCTION else f" of {environment_of(server)}"
            yield Finding(server.name, f"Server {server.name}{of} does not answer", state.last_reason, address)


def skew(facts: Facts) -> Iterator[Finding]:
    """Find the busiest server of an environment if it gets more than SKEW times the mean of its servers that answer."""
    groups: dict[str, list[Server]] = defaultdict(list)
    for server in facts.servers:
        groups[environment_of(server)].append(server)
    for environment, several in groups.items():
        loads = server_loads(several, facts.timestamp, sparks=False) if several[1:] else {}
        busiest = max(several, key=lambda server: loads[server.pk].skew or 0.0) if loads else several[0]
        load = loads.get(busiest.pk, ServerLoad())
        if load.skew is not None and load.rps is not None and load.skew > SKEW and load.rps >= _LEAST_RPS:
            title = f"Server {busiest.name} of {environment} gets {load.skew:g} times the mean of its servers"
            detail = f"It gets {load.rps:.3g} requests a second; {SKEW:g} times the mean is the goal."
            yield Finding(environment, title, detail, reverse("environment", args=[environment]))


def silent_process(_: Facts) -> Iterator[Finding]:
    for one in heartbeat.silences():
        detail = f"While it is silent, {one.consequence}."
        yield Finding(one.subject, f"The {one.who} does not answer", detail, reverse("servers"))


def data_drift(_: Facts) -> Iterator[Finding]:
    for one in drift_found():
        found, name = len(one.columns), one.model_name
        title = f"{found} column{'s' if found > 1 else ''} of {name} drifted"
        detail = f"In window {one.window} of monitor {one.monitor}: {', '.join(one.columns[:_MOST_COLUMNS])}"
        more = f" and {found - _MOST_COLUMNS} more" if found > _MOST_COLUMNS else ""
        address = f"{reverse('model_drift', args=[name])}?monitor={one.monitor}"
        yield Finding(f"{name}, monitor {one.monitor}", title, f"{detail}{more}.", address, name)


def truth(_: Facts) -> Iterator[Finding]:
    for metric in TruthMetric.objects.exclude(trouble="").select_related("model").order_by("model__name"):
        name = metric.model.name
        title = f"{metric.get_kind_display()} of {name} is worse than it should be"
        yield Finding(name, title, metric.trouble, reverse("model_truth", args=[name]), name)


def queue_grows(facts: Facts) -> Iterator[Finding]:
    for name, pending in facts.pending.items():
        if growing(pending, int(facts.timestamp)):
            title = f"The queue of {name} grows"
            last = pending[max(pending)]
            detail = f"{last} requests are pending, and more in each of the last minutes."
            yield Finding(name, title, detail, charts_address(name, facts.timestamp), name)


def growing(pending: Mapping[int, int], now: int) -> bool:
    """Return whether a queue grows: in each of the last three minutes it was longer than in the one before, and it has doubled.

    pending: the longest queue of each FINE seconds, by its time. A minute's figure is its shortest queue, so that a burst that
    is worked off does not count.
    """
    last = now - now % FINE
    minutes = []
    for start in range(last - QUEUE_S, last, 60):
        values = [pending[at] for at in range(start, start + 60, FINE) if at in pending]
        if len(values) < 4:  # an idle or unwatched part
            return False
        minutes.append(min(values))
    first, second, third = minutes
    return third >= _LEAST_QUEUE and first < second < third and third >= _GROWTH * max(first, 1)


def guardrail(facts: Facts) -> Iterator[Finding]:
    for rollout in rollouts_of_note(facts.now):
        if rollout.state == RolloutState.ROLLED_BACK:
            title = f"A rollout of {rollout.model.name} was rolled back"
            yield _of_rollout(rollout, title, rollout.reason)
        elif rollout.trouble:
            yield _of_rollout(rollout, f"A rollout of {rollout.model.name} cannot go on", rollout.trouble)


def deployment_stopped(_: Facts) -> Iterator[Finding]:
    for one in deployments().filter(state=DeploymentState.STOPPED):
        name, where = one.model.name, one.environment.name
        title = f"Release {one.release.number} of {name} stopped on its way to {where}"
        address = reverse("deployment", args=[where, one.pk])
        yield Finding(f"{name}, {where}", title, capfirst(f"{one.error.rstrip('.')}."), address, name)


def _of_rollout(rollout: Rollout, title: str, detail: str) -> Finding:
    name = rollout.model.name
    address = reverse("model_rollout", args=[name, rollout.name])
    return Finding(f"{name} {rollout.name}"[:220], title, detail, address, name, Severity.WARNING)
