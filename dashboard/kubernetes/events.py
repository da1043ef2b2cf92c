"""Tells why the number of replicas changed, or did not: by events of the cluster, and by what differs between two looks.

The cluster forgets its events after an hour; their rows stay. Each has a uid, so that it is kept once, whoever reads it.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NotRequired, TypedDict

from django.utils import timezone

from dashboard.kubernetes.api import MANAGER
from dashboard.kubernetes.pods import Pod, clip, moment
from dashboard.kubernetes.workloads import AutoscalerRow, WorkloadRow
from repository.core.plain_text import plain

KINDS = {
    "autoscaler": "autoscaler",
    "keda": "KEDA",
    "scaled": "pods changed",
    "set": "replicas set",
    "update": "rolling update",
    "pod": "pod moved or ended",
    "capacity": "no room",
    "person": "set here",
}
_HPA_MANAGERS = {"kube-controller-manager", "keda", "keda-operator"}  # their events tell more
_OF_PODS = {  # reason of an event about a pod -> kind
    "Evicted": "pod",
    "Preempted": "pod",
    "NodeNotReady": "pod",
    "TaintManagerEviction": "pod",
    "FailedScheduling": "capacity",
    "TriggeredScaleUp": "capacity",
    "NotTriggerScaleUp": "capacity",
}
_SAID_TWICE = {"FailedComputeMetricsReplicas"}  # another event tells why
_NOISE = "skip schedule deleting pod"  # of the scheduler, about a pod that is not wanted any more
_REPEATED = {"SuccessfulRescale", "ScalingReplicaSet"}  # each time is a change of its own


class _Object(TypedDict):
    kind: NotRequired[str]
    name: NotRequired[str]
    uid: NotRequired[str]


class _Series(TypedDict):
    count: NotRequired[int]
    lastObservedTime: NotRequired[str | None]


class _Meta(TypedDict):
    uid: NotRequired[str]
    creationTimestamp: NotRequired[str | None]


class Event(TypedDict):
    """An Event of core/v1. What events.k8s.io/v1 wrote has eventTime and series in place of the times and the count."""

    metadata: _Meta
    involvedObject: _Object
    reason: NotRequired[str | None]
    message: NotRequired[str | None]
    type: NotRequired[str | None]
    count: NotRequired[int | None]
    lastTimestamp: NotRequired[str | None]
    eventTime: NotRequired[str | None]
    series: NotRequired[_Series | None]


class EventList(TypedDict):
    items: list[Event]


@dataclass(frozen=True, slots=True)
class Change:
    """A row of ReplicaEvent that is to be kept."""

    uid: str
    at: datetime
    kind: str
    reason: str
    about: str
    said: str
    bad: bool = False


def changes_of(
    events: Iterable[Event], workloads: Sequence[WorkloadRow], autoscalers: Sequence[AutoscalerRow], pods: Sequence[Pod]
) -> list[Change]:
    """Return what the events of a namespace tell about the replicas of these workloads."""
    names = {
        "HorizontalPodAutoscaler": {one["hpa"] for one in autoscalers},
        "ScaledObject": {one["name"] for one in autoscalers if one["kind"] == "ScaledObject"},
        "Deployment": {one["name"] for one in workloads if one["kind"] == "Deployment"},
        "StatefulSet": {one["name"] for one in workloads if one["kind"] == "StatefulSet"},
    }
    there = {pod["metadata"]["name"] for pod in pods}
    found = [_change(one, names, there) for one in events]
    return [one for one in found if one is not None]


def warnings_of(events: Iterable[Event]) -> dict[str, tuple[str, str]]:
    """Return the newest warning about each pod, by its name: the reason, and the message."""
    newest: dict[str, tuple[datetime, str, str]] = {}
    for one in events:
        if one.get("type") == "Warning" and one["involvedObject"].get("kind") == "Pod":
            name, at = one["involvedObject"].get("name", ""), _at(one)
            if name not in newest or at >= newest[name][0]:
                newest[name] = at, plain(one.get("reason") or "")[:64], clip(one.get("message") or "")
    return {name: (reason, message) for name, (_, reason, message) in newest.items()}


def set_uid(workload: WorkloadRow, later: int = 0) -> str:
    """Return the uid of the change that gave a workload its present generation, or a later one."""
    return f"{workload['uid']}:replicas:{workload['generation'] + later}"


def differences(
    before: Sequence[WorkloadRow], now: Sequence[WorkloadRow], autoscalers: Sequence[AutoscalerRow]
) -> list[Change]:
    """Return what changed in workloads between two looks and has no event: who set the replicas, and that an update began.

    Before Kubernetes 1.22 nobody is named who set them by the subresource `scale`, as autoscalers and kubectl do.
    """
    driven = {one["target"] for one in autoscalers}
    known = {(one["kind"], one["name"], one["uid"]): one for one in before}
    found = []
    for one in now:
        old = known.get((one["kind"], one["name"], one["uid"]))
        if old is None or old["wanted"] is None or one["wanted"] is None:
            continue
        about = f"{one['kind']} {one['name']}"
        named = one["by"] if one["by_at"] != old["by_at"] else ""
        by_scaler = named in _HPA_MANAGERS or (not named and about in driven)
        if old["wanted"] != one["wanted"] and not by_scaler and named != MANAGER:
            at = (moment(one["by_at"]) if named else None) or timezone.now()
            by = f" by {named}" if named else ""
            said = f"{about} was set from {old['wanted']} to {one['wanted']} replicas in the cluster{by}"
            found.append(Change(set_uid(one), at, "set", "", about, said))
        if old["revision"] and old["revision"] != one["revision"]:
            said = f"rolling update {one['revision']} of {about} began"
            found.append(Change(f"{one['uid']}:{one['revision']}"[:100], timezone.now(), "update", "", about, said))
    return found


def disruptions(pods: Iterable[Pod]) -> list[Change]:
    """Return the pods that are ended by a drain, a preemption or a lost node, by their condition DisruptionTarget."""
    found = []
    for pod in pods:
        meta = pod["metadata"]
        for one in (pod.get("status") or {}).get("conditions") or []:
            if one["type"] == "DisruptionTarget" and one["status"] == "True":
                reason, at = plain(one.get("reason", ""))[:64], moment(one.get("lastTransitionTime"))
                said = f"pod {meta['name']} is ended ({reason}): {clip(one.get('message', ''))}"
                uid = f"{meta.get('uid', meta['name'])}:disruption"[:100]
                found.append(Change(uid, at or timezone.now(), "pod", reason, f"Pod {meta['name']}", said[:500], True))
    return found


def _change(one: Event, names: dict[str, set[str]], pods: Collection[str]) -> Change | None:
    about, reason, message = one["involvedObject"], plain(one.get("reason") or "")[:64], clip(one.get("message") or "")
    if reason in _SAID_TWICE or message.startswith(_NOISE):
        return None
    kind, name = about.get("kind", ""), about.get("name", "")
    if kind in names:
        if name not in names[kind]:
            return None
        what = {"HorizontalPodAutoscaler": "autoscaler", "ScaledObject": "keda"}.get(kind, "scaled")
        if kind == "ScaledObject" and not reason.startswith("KEDAScale"):
            return None
    elif kind == "ReplicaSet" and reason == "FailedCreate" and _made_by(name, names["Deployment"], r"-[a-z0-9]+"):
        what = "capacity"
    elif kind == "Pod" and reason in _OF_PODS and (name in pods or _is_pod_of(name, names)):
        what = _OF_PODS[reason]
    else:
        return None
    if reason in _REPEATED:
        uid = f"{one['metadata'].get('uid', '')}:{(one.get('series') or {}).get('count') or one.get('count') or 1}"
    else:
        uid = f"{about.get('uid', '')}:{reason}"  # the newest of an object and a reason
    bad = one.get("type") == "Warning" or what == "pod"
    said = f"{kind} {name}: {message or reason}"
    return Change(uid[:100], _at(one), what, reason, f"{kind} {name}"[:300], said[:500], bad)


def _is_pod_of(name: str, names: dict[str, set[str]]) -> bool:
    of_deployment = _made_by(name, names["Deployment"], r"-[a-z0-9]+-[a-z0-9]{5}")
    return of_deployment or _made_by(name, names["StatefulSet"], r"-[0-9]+")


def _made_by(name: str, makers: Iterable[str], ending: str) -> bool:
    return any(name.startswith(one) and re.fullmatch(ending, name[len(one) :]) for one in makers)


def _at(one: Event) -> datetime:
    series = one.get("series") or {}
    times = (series.get("lastObservedTime"), one.get("lastTimestamp"), one.get("eventTime"))
    found = next((at for text in times if (at := moment(text)) is not None), None)
    return found or moment(one["metadata"].get("creationTimestamp")) or timezone.now()
