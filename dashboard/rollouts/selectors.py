"""Reads rollouts: the state of one, both arms side by side, the last change of a model and how to undo it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median_low
from typing import cast

from django.db.models import Case, Exists, Max, OuterRef, Q, QuerySet, When
from django.utils import timezone
from django.utils.text import capfirst

from dashboard.access.happenings import Happening, alters_serving, changes
from dashboard.configuration.clients import for_clients_of_release
from dashboard.models import Model, Release, Rollout, RolloutFigures, RolloutMismatch, RolloutSample, Server
from dashboard.models.rollout import GuardrailReport, ShadowReport, TrafficReport, arm_in_words
from dashboard.releases import rollout_states as states
from dashboard.rollouts.advance import last_request_in_words
from dashboard.rollouts.baking import Served, bake_left, comes_by_itself, served_by
from dashboard.rollouts.figures import ARMS, ArmSums, ShadowSums, Sums, added, sums_of
from dashboard.servers.selectors import answers, of_production, servers
from dashboard.shared.choices import EventKind, ReleaseKind, RolloutKind, RolloutState
from dashboard.shared.exceptions import NotFound
from dashboard.shared.intervals import Estimate, difference, quantile_of, share_of
from repository.core.histogram import Counts, quantiles_ms, subtract
from repository.core.json_types import JsonObject

_LAST_STEPS = 200
_LOOKED_BACK = 20  # the most entries that are searched for the last change
RECENT_ENDS = timedelta(hours=24)
MOST_POINTS = 200  # the most points of a chart
_CHARTED = ("rps", "errors", "p50", "p99")
_GAP = 4  # samples that are this many times further apart than usual have a gap between them


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """Figures of an arm in a span of time. Times are in ms, or None if nothing was measured. share: its part of the clients'
    requests, from 0 to 1. The candidate of a shadow answers no client: its figures are the figures of the mirrored requests."""

    name: str  # stable, candidate
    words: str  # "version 3"
    version: int | None
    requests: int
    share: float | None
    errors: int
    error_share: float | None
    p50: float | None
    p99: float | None
    mean_ms: float | None


@dataclass(frozen=True, slots=True)
class Differences:
    """The candidate's figures minus stable's, since the rollout began; times in ms, None if nothing was measured."""

    error_share: Estimate | None
    p50: Estimate | None
    p99: Estimate | None


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """Results of the comparison since the rollout began. Shares from 0 to 1, times in ms, or None if nothing was compared.
    trouble: the candidate's last error, "" for none; it may quote an input."""

    compared: int
    disagreed: int
    disagreed_share: float | None
    mismatched: int
    top1_share: float | None
    max_absolute: float
    mean_absolute: float | None
    max_relative: float
    failed: int
    dropped: dict[str, int]
    trouble: str
    trouble_at: datetime | None
    stable_p50: float | None
    stable_p99: float | None
    candidate_p50: float | None
    candidate_p99: float | None


@dataclass(frozen=True, slots=True)
class GuardrailLine:
    """A guardrail with its value and limit. unit: "share" from 0 to 1, "ms", or "" for a custom metric. state: waiting, holds,
    breached; "" before the first report."""

    label: str
    unit: str
    stable: float | None
    candidate: float | None
    limit: float | None
    samples: tuple[int, int]
    needed: int
    p: float | None
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class RolloutStanding:
    """The standing of a rollout, from the reports of all servers of production.

    weight: the candidate's weight in the newest release, in per cent. in_force: the weight that the servers apply, or None if
    none has reported one. serves: whether the newest release of the rollout serves anywhere. servers: how many servers have
    reported these figures. judge: the name of the server whose guardrails are shown, as each server judges its own requests; ""
    if only one has reported. bake_left: the result of baking.bake_left. waits_for: a clause that says what
    the step waits for. arms: the figures since the rollout began. recent: the figures in the guardrails' window, which is
    recent_s seconds long; equal to `arms` if there is no window (recent_s is None).
    """

    rollout: Rollout
    release: Release | None
    weight: float
    in_force: float | None
    serves: bool
    servers: int
    judge: str
    bake_left: float | None
    waits_for: str
    arms: list[ArmFigures]
    recent: list[ArmFigures]
    recent_s: float | None
    differences: Differences | None
    shadow: ShadowFigures | None
    guardrails: list[GuardrailLine]
    told_at: datetime | None
    last_request: str

    @property
    def next_weight(self) -> float | None:
        return self.rollout.next_weight if self.rollout.state in states.UNDER_WAY else None

    @property
    def may_advance(self) -> bool:
        return self.rollout.state == RolloutState.RUNNING and self.rollout.next_weight is not None

    @property
    def may_pause(self) -> bool:
        return self.rollout.state == RolloutState.RUNNING and self.rollout.kind == RolloutKind.CANARY

    @property
    def may_resume(self) -> bool:
        return self.rollout.state == RolloutState.PAUSED

    @property
    def may_promote(self) -> bool:
        return self.rollout.state in states.UNDER_WAY and isinstance(self.rollout.candidate, int)

    @property
    def may_abort(self) -> bool:
        return self.rollout.state in states.UNFINISHED

    @property
    def holds(self) -> bool:
        return self.rollout.state == RolloutState.HOLDING


@dataclass(frozen=True, slots=True)
class LastChange:
    """The last change of a model, and how to undo it.

    undo: how to undo it. "abort" aborts the rollout, also while the old version is held. "go_back" goes back to release
    `target`. "return" goes back to the server that the rollout has replaced. "" means that the rollout was undone already, or
    that there is no release to go back to. words: a sentence about the effect of undoing.
    """

    happening: Happening | None
    release: Release | None
    undo: str
    words: str
    rollout: Rollout | None = None
    target: Release | None = None


# -- lists -------------------------------------------------------------------------------------------------------------
def rollouts(model: Model) -> QuerySet[Rollout]:
    """Return a model's rollouts, the newest first."""
    return Rollout.objects.filter(model=model).select_related("model", "step_release").defer("step_release__text")


def rollout_get(model: Model, name: str) -> Rollout:
    """Return a rollout. Raises NotFound if the model has no rollout of that name."""
    try:
        return rollouts(model).get(name=name)
    except Rollout.DoesNotExist:
        raise NotFound(f"model '{model.name}' has no rollout '{name[:80]}'") from None


def rollout_now(model: Model) -> Rollout | None:
    """Return the unfinished rollout of a model, or None if there is none."""
    return rollouts(model).filter(state__in=states.UNFINISHED).first()


def rollouts_of_all(state: str = "") -> QuerySet[Rollout]:
    """Return the rollouts of all models, newest first; only those in `state` if it is given."""
    rows = Rollout.objects.select_related("model").defer("model__fingerprint")
    return rows.filter(state=state) if state else rows


def rollouts_unfinished() -> QuerySet[Rollout]:
    """Return the unfinished rollouts of all models: first those that cannot continue, then by their last change."""
    rows = rollouts_of_all().filter(state__in=states.UNFINISHED)
    return rows.order_by(Case(When(trouble="", then=1), default=0), "-step_since", "-pk")


def rollouts_of_note(now: datetime | None = None) -> list[Rollout]:
    """Return the rollouts of all models that need a person, for the overview, in a handful of queries.

    They wait for somebody, cannot continue, or were rolled back in the last day and have no successor.
    """
    rows = rollouts_of_all()
    troubled = rows.filter(state__in=states.UNFINISHED).exclude(trouble="")
    later = Rollout.objects.filter(model=OuterRef("model"), pk__gt=OuterRef("pk"))
    since = (now or timezone.now()) - RECENT_ENDS
    back = rows.filter(~Exists(later), state=RolloutState.ROLLED_BACK, ended_at__gte=since)
    waiting = [one for one in _at_last_step() if one.waits_for_person]
    return [*waiting, *(troubled | back)[:50]]


def _at_last_step() -> list[Rollout]:
    rows = rollouts_of_all().filter(state=RolloutState.RUNNING, kind=RolloutKind.CANARY, trouble="")
    rows = rows.prefetch_related("figures")
    return [one for one in rows.order_by("step_since")[:_LAST_STEPS] if one.next_weight is None]


# -- standing ----------------------------------------------------------------------------------------------------------
def standing(rollout: Rollout) -> RolloutStanding:
    """Return the standing of a rollout, in a handful of queries."""
    release = rollout.releases.filter(continues=None).order_by("-number").defer("text").first()
    rows = list(_reports(rollout))
    present = [row for row in rows if answers(row.server)] or rows
    judge = _judge(present)
    report = judge.report if judge is not None else None
    weight = _weight(rollout, release)
    sums = added([sums_of(row) for row in rows])
    shadow = sums["shadow"] if sums is not None else None
    recent_s = _recent_s(rollout, present)
    served = served_by(rollout)
    left = bake_left(rollout, served)
    return RolloutStanding(
        rollout=rollout,
        release=release,
        weight=weight,
        in_force=_in_force(present, weight) if rollout.state in states.UNDER_WAY else None,
        serves=release is not None and release.spans.filter(of_production("server__"), ended_at=None).exists(),
        servers=len(rows),
        judge=judge.server.name if judge is not None and len(rows) > 1 else "",
        bake_left=left,
        waits_for=_waits_for(rollout, report["guardrails"] if report else [], served),
        arms=_arms(rollout, sums),
        recent=_arms(rollout, added([_in_window(row) for row in present]) if recent_s else sums),
        recent_s=recent_s,
        differences=_differences(sums["arms"]) if sums is not None else None,
        shadow=_shadow(shadow, report["shadow"] if report else None) if shadow is not None else None,
        guardrails=_guardrails(rollout, report["guardrails"] if report else []),
        told_at=max((row.at for row in rows), default=None),
        last_request=last_request_in_words(rollout) if rollout.state == RolloutState.HOLDING else "",
    )


def _reports(rollout: Rollout) -> QuerySet[RolloutFigures]:
    """Return the last report of each server of production, the bundled one first."""
    rows = RolloutFigures.objects.filter(of_production("server__"), rollout=rollout).select_related("server__state")
    return rows.order_by("-server__bundled", "server__name")


def _judge(rows: Sequence[RolloutFigures]) -> RolloutFigures | None:
    """Return the report whose guardrails are shown: one with a breach, else the one with the most requests of the candidate."""
    return max(rows, key=lambda row: (row.report["breach"] is not None, _asked(row.report)), default=None)


def _asked(report: TrafficReport) -> int:
    return report["shadow"]["compared"] if report["shadow"] is not None else report["arms"]["candidate"]["requests"]


def _in_force(rows: Sequence[RolloutFigures], weight: float) -> float | None:
    """Return the weight that servers apply: one that is not `weight`, if any applies another one."""
    weights = [row.report["weight"] for row in rows]
    return next((one for one in weights if one != weight), weights[0] if weights else None)


def _weight(rollout: Rollout, release: Release | None) -> float:
    if rollout.state in states.UNDER_WAY and release is not None:
        arm = rollout.candidate
        return release.traffic.get(str(arm.get("url")) if isinstance(arm, dict) else str(arm), 0.0)
    promoted = rollout.state in (RolloutState.HOLDING, RolloutState.DONE) and rollout.kind != RolloutKind.SHADOW
    return 100.0 if promoted else 0.0


def reporting_servers(rollout: Rollout) -> list[Server]:
    """Return the servers that reported a rollout, the bundled one first."""
    return list(servers().filter(pk__in=RolloutFigures.objects.filter(rollout=rollout).values("server")))


def figures_by_server(rollout: Rollout) -> list[tuple[Server, list[ArmFigures]]]:
    """Return the figures of both arms since the rollout began, by server, the bundled one first."""
    rows = (
        RolloutFigures.objects.filter(rollout=rollout)
        .select_related("server")
        .order_by("-server__bundled", "server__name")
    )
    return [(row.server, _arms(rollout, sums_of(row))) for row in rows]


def history(rollout: Rollout, server: Server | None = None) -> JsonObject:
    """Return both arms over time, for charts: `times` in Unix seconds, `weight`, and for each arm `rps`, `errors` (a second),
    `p50` and `p99` in ms, or None if the arm did nothing. Each value covers the time since the previous one. If the previous
    one is long ago, nothing was reported in between, and a time without values marks the gap.

    server: the only server whose requests count; by default those of all servers of production add up.
    """
    of = Q(server=server) if server else of_production("server__")
    rows = RolloutSample.objects.filter(of, rollout=rollout)
    # A long history has fewer samples; all servers have those of the one with the fewest.
    every_s = RolloutFigures.objects.filter(of, rollout=rollout).aggregate(most=Max("every_s"))["most"] or 1
    read = sorted(set(rows.values_list("at", flat=True)))
    whole = [at for at in read if at % every_s == 0] or read
    shown = {*whole[:: -(-len(whole) // MOST_POINTS) or 1], *read[-1:]}
    found = _side_by_side(rows.filter(at__in=shown).values_list("server", "at", "data"))
    pairs = list(pairwise(found))
    apart = [later - earlier for earlier, later in pairwise(at for at, _ in found)]
    usual = median_low(apart) if apart else 0
    times: list[int] = []
    weight: list[float | None] = []
    points: dict[str, list[dict[str, float | None]]] = {name: [] for name in ARMS}
    for (earlier, before), (at, now) in pairs:
        if at - earlier > _GAP * usual:
            times.append(earlier + usual)
            weight.append(None)
            for name in ARMS:
                points[name].append(dict.fromkeys(_CHARTED))
        times.append(at)
        weight.append(now["weight"])
        arms_now, arms_before = _sum_requests(rollout, now), _sum_requests(rollout, before)
        for name in ARMS:
            points[name].append(_point(_arm_since(arms_now[name], arms_before[name]), at - earlier))
    arms = {name: {key: [point[key] for point in points[name]] for key in _CHARTED} for name in ARMS}
    return cast(JsonObject, {"times": times, "weight": weight, "arms": arms})


def _side_by_side(rows: Iterable[tuple[int, int, JsonObject]]) -> list[tuple[int, Sums]]:
    """Return the sums of all servers at each time. rows: server, time and sums, the oldest first.

    A server counts with its newest sample of that time or before. Until its first one it counts with that one, so that it adds
    nothing.
    """
    times: dict[int, dict[int, Sums]] = defaultdict(dict)
    last: dict[int, Sums] = {}
    for server, at, data in rows:
        times[at][server] = sums = cast(Sums, data)
        last.setdefault(server, sums)
    found = []
    for at, told in times.items():
        last |= told
        found.append((at, {**cast(Sums, added(list(last.values()))), "weight": next(iter(told.values()))["weight"]}))
    return cast("list[tuple[int, Sums]]", found)


def mismatches(rollout: Rollout) -> QuerySet[RolloutMismatch]:
    """Return the mismatches, the worst first, without their tensors."""
    return RolloutMismatch.objects.filter(rollout=rollout).select_related("server").defer("data")


def mismatch_get(rollout: Rollout, pk: int) -> RolloutMismatch:
    """Return one mismatch with its tensors. Raises NotFound if the mismatch is no longer stored."""
    found = RolloutMismatch.objects.filter(rollout=rollout, pk=pk).select_related("server").first()
    if found is None:
        raise NotFound("there is no such request; it may have made room for a worse one")
    return found


def last_change(model: Model, *, release: Release | None, back: Release | None) -> LastChange:
    """Return the last change of a model and how to undo it.

    release: the newest release. back: the release to which *go back* returns (`releases.selectors.way_back`).
    """
    rollout = rollout_now(model)
    # A breach has two rows: an event, which is skipped, and the audit entry of the rollback.
    newest = changes(model=model)[:_LOOKED_BACK]
    happening = next((one for one in newest if alters_serving(one) and one.kind != EventKind.BREACHED), None)
    if rollout is not None:
        return LastChange(happening, release, "abort", rollout.undone_in_words, rollout=rollout)
    over = release.rollout if release is not None and release.kind == ReleaseKind.ROLLOUT else None
    if over is not None and over.state in (RolloutState.ABORTED, RolloutState.ROLLED_BACK):
        words = f"It is undone already: {over.stable_words} answers everything."
        return LastChange(happening, release, "", words, rollout=over)
    if over is not None and over.state == RolloutState.DONE and over.replaced_another:
        stays = f"{over.candidate_words} stays in its shadow"
        words = f"{capfirst(over.stable_words)} answers everything again immediately; {stays}."
        return LastChange(happening, release, "return", words, rollout=over)
    if back is None:
        return LastChange(happening, release, "", "There is no other release to go back to.")
    numbers = ", ".join(map(str, back.versions))
    words = f"Release {back.number} comes back: version{'' if len(back.versions) == 1 else 's'} {numbers}, as configured then."
    clients = for_clients_of_release(model, back)
    if clients is not None and clients.refused:
        words += f" Clients break: {', '.join(clients.refused)}."
    return LastChange(happening, release, "go_back", words, target=back)


# -- numbers -----------------------------------------------------------------------------------------------------------
def _arms(rollout: Rollout, sums: Sums | None) -> list[ArmFigures]:
    if sums is None:
        return []
    arms = _sum_requests(rollout, sums)
    clients = ("stable",) if rollout.kind == RolloutKind.SHADOW else ARMS
    total = sum(arms[name]["requests"] for name in clients)
    who = {"stable": rollout.stable, "candidate": rollout.candidate}
    return [_arm(name, who[name], arms[name], total) for name in ARMS]


def _sum_requests(rollout: Rollout, sums: Sums) -> dict[str, ArmSums]:
    """Return the requests of both arms. A shadow's candidate has the mirrored requests that the server sent."""
    shadow = sums["shadow"]
    if rollout.kind != RolloutKind.SHADOW or shadow is None:
        return sums["arms"]
    asked, failed = shadow["compared"] + shadow["failed"], shadow["failed"]
    return {**sums["arms"], "candidate": {"requests": asked, "errors": failed, "latency": shadow["candidate_latency"]}}


def _arm(name: str, arm: int | JsonObject, sums: ArmSums, total: int) -> ArmFigures:
    requests, errors, latency = sums["requests"], sums["errors"], sums["latency"]
    p50, p99 = quantiles_ms(_counts(latency["counts"]), (0.5, 0.99))
    return ArmFigures(
        name=name,
        words=arm_in_words(arm),
        version=arm if isinstance(arm, int) else None,
        requests=requests,
        share=requests / total if total else None,
        errors=errors,
        error_share=errors / requests if requests else None,
        p50=p50,
        p99=p99,
        mean_ms=latency["sum_ns"] / latency["total"] / 1e6 if latency["total"] else None,
    )


def _differences(arms: dict[str, ArmSums]) -> Differences:
    stable, candidate = (arms[name] for name in ARMS)
    shares = [share_of(arm["errors"], arm["requests"]) for arm in (candidate, stable)]
    p50, p99 = (
        [quantile_of(_counts(arm["latency"]["counts"]), quantile) for arm in (candidate, stable)]
        for quantile in (0.5, 0.99)
    )
    return Differences(difference(*shares), difference(*p50), difference(*p99))


def _shadow(sums: ShadowSums, report: ShadowReport | None) -> ShadowFigures:
    trouble = report.get("trouble") if report is not None else None
    compared, classes = sums["compared"], sums["top1_compared"]
    quantiles = [
        quantiles_ms(_counts(latency["counts"]), (0.5, 0.99))
        for latency in (sums["stable_latency"], sums["candidate_latency"])
    ]
    return ShadowFigures(
        compared=compared,
        disagreed=sums["disagreed"],
        disagreed_share=sums["disagreed"] / compared if compared else None,
        mismatched=sums["mismatched"],
        top1_share=sums["top1_agreed"] / classes if classes else None,
        max_absolute=sums["max_absolute"],
        mean_absolute=sums["sum_absolute"] / compared if compared else None,
        max_relative=sums["max_relative"],
        failed=sums["failed"],
        dropped=sums["dropped"],
        trouble=trouble["reason"] if trouble is not None else "",
        trouble_at=datetime.fromtimestamp(trouble["at"], UTC) if trouble is not None else None,
        stable_p50=quantiles[0][0],
        stable_p99=quantiles[0][1],
        candidate_p50=quantiles[1][0],
        candidate_p99=quantiles[1][1],
    )


def _recent_s(rollout: Rollout, rows: Sequence[RolloutFigures]) -> float | None:
    """Return the length of the guardrails' window, or None for a shadow, whose candidate gets no requests of clients."""
    if rollout.kind == RolloutKind.SHADOW:
        return None
    windows = [row.report["arms"][name].get("window") for row in rows for name in ARMS]
    return min((window["seconds"] for window in windows if window is not None), default=None)


def _in_window(row: RolloutFigures) -> Sums:
    sums = sums_of(row)
    windows = {name: row.report["arms"][name].get("window") for name in ARMS}
    return {**sums, "arms": {name: window or sums["arms"][name] for name, window in windows.items()}}


def _arm_since(now: ArmSums, before: ArmSums) -> ArmSums:
    counts = subtract(_counts(now["latency"]["counts"]), _counts(before["latency"]["counts"]))
    return {
        "requests": now["requests"] - before["requests"],
        "errors": now["errors"] - before["errors"],
        "latency": {
            "total": now["latency"]["total"] - before["latency"]["total"],
            "sum_ns": now["latency"]["sum_ns"] - before["latency"]["sum_ns"],
            "counts": {str(bucket): count for bucket, count in counts.items()},
        },
    }


def _point(sums: ArmSums, seconds: int) -> dict[str, float | None]:
    p50, p99 = quantiles_ms(_counts(sums["latency"]["counts"]), (0.5, 0.99))
    seconds = max(seconds, 1)
    return {"rps": sums["requests"] / seconds, "errors": sums["errors"] / seconds, "p50": p50, "p99": p99}


def _counts(counts: dict[str, int]) -> Counts:
    return {int(bucket): count for bucket, count in counts.items()}


# -- guardrails --------------------------------------------------------------------------------------------------------
def _guardrails(rollout: Rollout, reports: list[GuardrailReport]) -> list[GuardrailLine]:
    planned = rollout.plan["guardrails"]
    rows: Iterable[GuardrailReport | None] = reports if len(reports) == len(planned) else [None] * len(planned)
    return [_line(plan, row, rollout.plan["min_samples"]) for plan, row in zip(planned, rows, strict=True)]


def _line(plan: JsonObject, report: GuardrailReport | None, needed: int) -> GuardrailLine:
    label, unit = _named(plan)
    if report is None:
        return GuardrailLine(label, unit, None, None, None, (0, 0), needed, None, "", "")
    samples = report["samples"] or [0, 0]
    return GuardrailLine(
        label=label,
        unit=unit,
        stable=report["stable"],
        candidate=report["candidate"],
        limit=report["limit"],
        samples=(samples[0], samples[1]),
        needed=needed,
        p=report["p"],
        state=report["state"],
        detail=report["detail"],
    )


def _named(plan: JsonObject) -> tuple[str, str]:
    """Return the label of a guardrail, and the unit of its values."""
    match plan["metric"]:
        case "errors":
            return "Errors", "share"
        case "latency":
            return f"Latency p{100 * cast(float, plan.get('quantile', 0.99)):g}", "ms"
        case "disagreement":
            return "Disagreement", "share"
        case _:
            return str(plan.get("name") or "Prometheus query"), ""


def _waits_for(rollout: Rollout, reports: list[GuardrailReport], served: Mapping[Server, Served]) -> str:
    """Return a clause about what the next step waits for in addition to its time; "" for nothing.

    The next step begins only when its time is over and all guardrails hold.
    """
    if rollout.state != RolloutState.RUNNING:
        return ""
    behind = [server.name for server, one in served.items() if not one.serves]
    if behind and len(behind) < len(served):
        return f"the present one does not serve on {', '.join(behind)} yet"
    for line in _guardrails(rollout, reports) if comes_by_itself(rollout) else []:
        if line.state == "waiting":
            return f"{line.label.lower() if line.unit else line.label} ({line.detail})"
    return ""
