"""Looks at an environment in its cluster: pods, workloads, autoscalers, events. What may not be read is named and left out."""

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict, TypeVar

from dashboard.kubernetes.api import EVENTS, PODS, SERVICES, Cluster, Denied, cluster_of
from dashboard.kubernetes.events import Change, Event, EventList, changes_of, disruptions, warnings_of
from dashboard.kubernetes.pods import Pod, PodList, PodRow, pod_row
from dashboard.kubernetes.workloads import AutoscalerRow, WorkloadRow, autoscalers_of, bare, owners_of, workload_of
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import NotFound

MOST_PODS = 1000
_MOST_WORKLOADS = 5  # of one environment

Result = TypeVar("Result")


class _Spec(TypedDict):
    selector: NotRequired[dict[str, str] | None]


class _Service(TypedDict):
    spec: _Spec


@dataclass(slots=True)
class Look:
    """What was seen. trouble: what could not be read, as sentences. changes: why the number of replicas changed."""

    pods: list[PodRow] = field(default_factory=list)
    workloads: list[WorkloadRow] = field(default_factory=list)
    autoscalers: list[AutoscalerRow] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)


async def look_at(environment: ServerEnvironment, before: Sequence[WorkloadRow] = ()) -> Look:
    """Look at the pods of an environment and what makes them. before: the workloads of the last look, for when none has a pod.

    Raises DashboardError if the API cannot be asked at all.
    """
    look = Look()
    denied: list[Denied] = []
    async with cluster_of(environment) as cluster:
        pods = await _allowed(_pods(cluster, environment), [], denied)
        owners = owners_of(pods) or [(one["kind"], one["name"]) for one in before]
        for kind, name in owners[:_MOST_WORKLOADS]:
            with suppress(NotFound):  # it was removed meanwhile
                look.workloads.append(await _allowed(workload_of(cluster, kind, name), bare(kind, name), denied))
        targets = {f"{one['kind']} {one['name']}" for one in look.workloads}
        scalers = await _allowed(autoscalers_of(cluster), [], denied)
        look.autoscalers = [one for one in scalers if one["target"] in targets]
        events = await _allowed(_events(cluster), [], denied)
    warnings = warnings_of(events)
    look.pods = [pod_row(pod, cluster.namespace, warnings.get(pod["metadata"]["name"], ("", ""))) for pod in pods]
    look.changes = changes_of(events, look.workloads, look.autoscalers, pods) + disruptions(pods)
    look.trouble = _missing(denied, cluster.namespace)
    return look


async def labels_of(cluster: Cluster, environment: ServerEnvironment) -> str:
    """Return the label selector of an environment's pods; "" for a service that selects none. Raises NotFound, Denied."""
    if environment.kubernetes_selector:
        return environment.kubernetes_selector.partition("/")[2]
    found: _Service = await cluster.read(SERVICES, _Service, environment.kubernetes_service.partition("/")[2])
    return ",".join(f"{name}={value}" for name, value in sorted((found["spec"].get("selector") or {}).items()))


async def _pods(cluster: Cluster, environment: ServerEnvironment) -> list[Pod]:
    labels = await labels_of(cluster, environment)
    if not labels:
        return []
    listed: PodList = await cluster.read(PODS, PodList, labelSelector=labels)
    return sorted(listed["items"], key=lambda pod: pod["metadata"]["name"])[:MOST_PODS]


async def _events(cluster: Cluster) -> list[Event]:
    listed: EventList = await cluster.read(EVENTS, EventList)
    return listed["items"]


async def _allowed(asked: Awaitable[Result], otherwise: Result, denied: list[Denied]) -> Result:
    """Return what was asked, or the other value if the dashboard's account may not read it."""
    try:
        return await asked
    except Denied as error:
        denied.append(error)
        return otherwise


def _missing(denied: Sequence[Denied], namespace: str) -> list[str]:
    """Return one sentence about all rules that the account lacks."""
    if not denied:
        return []
    rules = list(dict.fromkeys(error.rule for error in denied))
    return [
        f"not all is shown, because the dashboard's account lacks rights in the namespace {namespace}: give its Role a rule "
        f"with {'; one with '.join(rules)}"
    ]
