"""Reads what was seen of environments in their clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict
from urllib.parse import urlsplit

from django.db.models import QuerySet
from django.utils import timezone

from dashboard.kubernetes.api import WORKLOADS, rules_in
from dashboard.kubernetes.pods import PodRow
from dashboard.kubernetes.workloads import AutoscalerRow, WorkloadRow
from dashboard.models import ClusterLook, ReplicaCount, ReplicaEvent, Server, ServerEnvironment

STALE = timedelta(seconds=60)  # `watch` looks every few seconds
_MOST_MARKS = 200
_FLAT_S = 0.001  # between the end of one number and the beginning of the next
_UNMARKED = ("scaled",)  # these follow from another event, which is marked
_ORDER = ("failed", "down", "paused", "loading", "starting", "unloading", "expired", "ready")


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A pod, and the server that it is. server: "" if it has no address yet, or has ended."""

    pod: PodRow
    server: str


@dataclass(frozen=True, slots=True)
class Replicas:
    """What was seen last of an environment's replicas, and who decides on them. wanted, ready: None if none was seen yet.

    looked_at: None if nobody could look yet. stale: what is shown may be over. trouble: why, and what is missing, as sentences.
    least, most: the bounds within which they are set here. refusal: why nobody sets them here; "" if they can be set.
    """

    looked_at: datetime | None
    stale: bool
    wanted: int | None
    ready: int | None
    pods: list[PodRow]
    workloads: list[WorkloadRow]
    autoscalers: list[AutoscalerRow]
    trouble: list[str]
    least: int
    most: int
    refusal: str


class Readings(TypedDict):
    """What charts/timeline.js draws: the numbers over time, with a mark for each reason."""

    times: list[float]
    arms: dict[str, dict[str, list[int]]]
    steps: list[dict[str, object]]
    until: float
    servers: list[str]
    server: str


def replicas_of(environment: ServerEnvironment, told: str = "") -> Replicas:
    """Return what pages, REST and commands tell of an environment's replicas. An API that does not answer is in its trouble.

    told: a sentence that the reader has already; the trouble does not repeat it.
    """
    look, count = _look_of(environment), environment.replica_counts.first()
    workloads, autoscalers = (look.workloads, look.autoscalers) if look is not None else ([], [])
    looked_at = look.looked_at if look is not None and look.looked_at > environment.created_at else None
    trouble = said_once(environment.lookup_error, look.trouble if look is not None else [])
    return Replicas(
        looked_at=looked_at,
        stale=looked_at is not None and (bool(trouble) or timezone.now() - looked_at > STALE),
        wanted=count.wanted if count is not None else None,
        ready=count.ready if count is not None else None,
        pods=look.pods if look is not None else [],
        workloads=workloads,
        autoscalers=autoscalers,
        trouble=untold(trouble, told),
        least=environment.replicas_min,
        most=environment.replicas_max,
        refusal=refusal(environment, workloads, autoscalers),
    )


def said_once(failed: str, seen: Sequence[str]) -> list[str]:
    """Return what failed, as sentences of which none repeats another.

    failed: why the servers could not be looked up, and what this means for them; "" if they were. seen: why the look at the
    pods, which asks the same API for more, failed or is not whole.
    """
    more = [one for one in seen if not failed.startswith(one)]
    if rules := rules_in(failed):  # the look says which other rights are missing
        lacking = [rule for one in more for rule in rules_in(one) if rule not in rules]
        failed += f". The Role also lacks {'; '.join(lacking)}" if lacking else ""
        more = [one for one in more if not rules_in(one)]
    return [failed, *more] if failed else more


def untold(trouble: Sequence[str], told: str) -> list[str]:
    """Return the sentences that do not say what a reader was told."""
    rules = set(rules_in(told))
    return [one for one in trouble if not ((told and one.startswith(told)) or rules.intersection(rules_in(one)))]


def last_workloads(environment: ServerEnvironment) -> list[WorkloadRow]:
    """Return what made the pods that were seen last."""
    look = _look_of(environment)
    return look.workloads if look is not None else []


def _look_of(environment: ServerEnvironment) -> ClusterLook | None:
    return ClusterLook.objects.filter(environment=environment).first()


def pod_standings(environment: ServerEnvironment, pods: Sequence[PodRow]) -> list[PodStanding]:
    """Return the pods, those that are not ready first, each with the server at its address."""
    servers = list(
        Server.objects.filter(environment=environment).exclude(named_at=None).only("name", "http_url", "zone")
    )
    by_address = {urlsplit(one.http_url).hostname: one for one in servers}
    by_name = {one.name: one for one in servers}
    found = []
    for pod in sorted(pods, key=lambda pod: (_ORDER.index(pod["word"]), pod["name"])):
        server = by_name.get(pod["name"]) or by_address.get(pod["address"] or None)
        zone = pod["zone"] or (server.zone if server is not None else "")
        found.append(PodStanding({**pod, "zone": zone}, server.name if server is not None else ""))
    return found


def refusal(
    environment: ServerEnvironment, workloads: Sequence[WorkloadRow], autoscalers: Sequence[AutoscalerRow]
) -> str:
    """Return why nobody sets the replicas of an environment here; "" if they can be set."""
    if not environment.in_kubernetes:
        return f"the servers of {environment.name} are not found in Kubernetes, so it has no replicas to set"
    if not environment.replicas_max:
        return f"no replicas are set here: an administrator first gives {environment.name} bounds for them"
    if not workloads:
        return f"it is not known yet what makes the pods of {environment.name}: `watch` has seen none"
    names = " and ".join(f"{one['kind']} {one['name']}" for one in workloads)
    if len(workloads) > 1:
        return f"the pods of {environment.name} are of {names}: set their replicas in the cluster"
    if workloads[0]["kind"] not in WORKLOADS:
        return f"a {workloads[0]['kind']} has no number of replicas that can be set"
    for one in autoscalers:
        if one["target"] == names:
            return (
                f"{one['kind']} {one['name']} sets the replicas of {names}, from {one['min']} to {one['max']}, and would undo "
                "this: change its bounds in the cluster"
            )
    if owner := workloads[0]["owner"]:
        return f"{owner} made {names}, and would undo this: change the replicas there"
    return ""


def replica_counts(environment: ServerEnvironment) -> QuerySet[ReplicaCount]:
    """Return the numbers of replicas, the newest first."""
    return environment.replica_counts.all()


def replica_events(environment: ServerEnvironment) -> QuerySet[ReplicaEvent]:
    """Return why the number of replicas changed, the newest first."""
    return environment.replica_events.all()


def readings(environment: ServerEnvironment, span: timedelta) -> Readings:
    """Return the numbers of replicas in a span until now, as steps, or until the cluster was seen last, if that is long ago."""
    now = timezone.now()
    since, look = now - span, _look_of(environment)
    seen = look.looked_at if look is not None and now - look.looked_at > STALE else now
    rows = list(environment.replica_counts.filter(at__gt=since).order_by("at", "pk"))
    before = environment.replica_counts.filter(at__lte=since).first()
    times: list[float] = []
    wanted: list[int] = []
    ready: list[int] = []

    def add(at: datetime, count: ReplicaCount, later: float = 0.0) -> None:
        times.append(at.timestamp() + later)
        wanted.append(count.wanted)
        ready.append(count.ready)

    last = before
    if before is not None and seen > since:
        add(since, before)
    for row in rows:
        if last is not None:
            add(row.at, last, -_FLAT_S)
        add(row.at, row)
        last = row
    if last is not None and times and seen.timestamp() > times[-1]:
        add(seen, last)
    events = environment.replica_events.filter(at__gt=since).exclude(kind__in=_UNMARKED)[:_MOST_MARKS]
    steps: list[dict[str, object]] = [
        {"at": one.at.timestamp(), "text": one.said, "bad": one.bad} for one in reversed(events)
    ]
    arms = {"wanted": {"replicas": wanted}, "ready": {"replicas": ready}}
    return {"times": times, "arms": arms, "steps": steps, "until": now.timestamp(), "servers": [], "server": ""}
