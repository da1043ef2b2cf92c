"""Reads pods: where each runs, how often its containers were restarted, and in one sentence why it is not ready and what to do.

The sentences are from the fields of core/v1 Pod that the kubelet, the scheduler and the node controller write: conditions, and
the present and last states of containers (waiting, running, terminated).
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NotRequired, TypedDict

from django.utils import timezone

from repository.core.plain_text import plain

ZONE = "topology.kubernetes.io/zone"
_MESSAGE = 240  # characters of a message of the cluster
_LATE = timedelta(seconds=60)  # after its grace period a pod should be gone
_FETCH = {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
_USUAL = {"ContainerCreating", "PodInitializing", ""}


class Owner(TypedDict):
    kind: str
    name: str
    controller: NotRequired[bool | None]


class Meta(TypedDict):
    name: str
    uid: NotRequired[str]
    labels: NotRequired[dict[str, str] | None]
    ownerReferences: NotRequired[list[Owner] | None]
    creationTimestamp: NotRequired[str | None]
    deletionTimestamp: NotRequired[str | None]


class _Ended(TypedDict):
    reason: NotRequired[str]
    message: NotRequired[str]
    exitCode: NotRequired[int]
    finishedAt: NotRequired[str | None]


class _Waiting(TypedDict):
    reason: NotRequired[str]
    message: NotRequired[str]


class _State(TypedDict):
    waiting: NotRequired[_Waiting | None]
    terminated: NotRequired[_Ended | None]


class _Container(TypedDict):
    name: str
    ready: NotRequired[bool]
    started: NotRequired[bool | None]
    restartCount: NotRequired[int]
    image: NotRequired[str]
    state: NotRequired[_State | None]
    lastState: NotRequired[_State | None]


class Condition(TypedDict):
    type: str
    status: str
    reason: NotRequired[str]
    message: NotRequired[str]
    lastTransitionTime: NotRequired[str | None]


class _Address(TypedDict):
    ip: NotRequired[str]


class _Status(TypedDict):
    phase: NotRequired[str]
    reason: NotRequired[str]
    message: NotRequired[str]
    podIP: NotRequired[str]
    podIPs: NotRequired[list[_Address] | None]
    nominatedNodeName: NotRequired[str]
    conditions: NotRequired[list[Condition] | None]
    containerStatuses: NotRequired[list[_Container] | None]
    initContainerStatuses: NotRequired[list[_Container] | None]


class _Port(TypedDict):
    name: NotRequired[str]
    containerPort: NotRequired[int]


class _Resources(TypedDict):
    limits: NotRequired[dict[str, str] | None]


class _SpecContainer(TypedDict):
    name: str
    ports: NotRequired[list[_Port] | None]
    resources: NotRequired[_Resources | None]


class _Spec(TypedDict):
    nodeName: NotRequired[str]
    containers: NotRequired[list[_SpecContainer]]


class Pod(TypedDict):
    """A pod, as the API tells of it."""

    metadata: Meta
    spec: _Spec
    status: NotRequired[_Status]


class PodList(TypedDict):
    items: list[Pod]


class PodRow(TypedDict):
    """A pod, as it is stored and shown. word: its state, as the pages have it. said: why, and what to do; "" if all is well."""

    name: str
    address: str
    node: str
    zone: str
    word: str
    label: str
    ready: bool
    restarts: int
    said: str
    since: str


def moment(text: str | None) -> datetime | None:
    """Return a time of the API, None if it is none that can be stored."""
    try:
        found = datetime.fromisoformat(text or "")
        return found.astimezone(UTC) if found.tzinfo else None
    except (ValueError, OverflowError):
        return None


def address_of(pod: Pod) -> str:
    """Return the address of a pod, of IPv4 if it has one; "" if it has none yet."""
    status = pod.get("status") or {}
    given = [one.get("ip", "") for one in status.get("podIPs") or []] or [status.get("podIP", "")]
    numbers = [number for text in given if (number := _number(text))]
    return next((one for one in numbers if ":" not in one), numbers[0] if numbers else "")


def ports_of(pod: Pod) -> dict[str, int]:
    """Return the ports of its containers that have names."""
    ports = [port for one in pod["spec"].get("containers") or [] for port in one.get("ports") or []]
    return {port["name"]: port["containerPort"] for port in ports if port.get("name") and port.get("containerPort")}


def is_over(pod: Pod) -> bool:
    """Return whether all containers have ended, and none starts again."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pod_row(pod: Pod, namespace: str, warning: tuple[str, str] = ("", "")) -> PodRow:
    """Return the row of a pod. warning: reason and message of the newest about it."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    word, label, said = _state(pod, namespace)
    reason, message = warning
    if message and word not in ("ready", "failed") and message not in said:
        said = f"{f'{said}. ' * bool(said)}The cluster says: {message} ({reason})"
    every = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return {
        "name": plain(meta["name"])[:253],
        "address": address_of(pod),
        "node": plain(spec.get("nodeName", ""))[:253],
        "zone": plain((meta.get("labels") or {}).get(ZONE, ""))[:64],
        "word": word,
        "label": label,
        "ready": word == "ready",
        "restarts": sum(one.get("restartCount", 0) for one in every),
        "said": said[:600],
        "since": (meta.get("creationTimestamp") or "")[:40],
    }


def clip(text: str) -> str:
    """Return a message of the cluster as the end of a sentence."""
    text = " ".join(plain(text).split())
    return (text if len(text) <= _MESSAGE else f"{text[:_MESSAGE].rpartition(' ')[0]} (cut off)").rstrip(".")


def _state(pod: Pod, namespace: str) -> tuple[str, str, str]:
    """Return the word of a pod's state for its sign, the word for people, and a sentence."""
    meta, status = pod["metadata"], pod.get("status") or {}
    before = [one for one in status.get("initContainerStatuses") or [] if not _is_done(one)]
    containers = [*before, *(status.get("containerStatuses") or [])]
    conditions = {one["type"]: one for one in status.get("conditions") or []}
    if status.get("phase") == "Failed":
        return "failed", "ended", _failed(status, containers, pod, namespace)
    if status.get("phase") == "Succeeded":
        return "expired", "ended", "its containers have ended, and nothing starts them again"
    if ends := moment(meta.get("deletionTimestamp")):
        return _ending(pod, ends, conditions.get("DisruptionTarget"))
    scheduled = conditions.get("PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        return "paused", "waiting for a node", _unscheduled(scheduled, status.get("nominatedNodeName", ""))
    for one in containers:
        state = one.get("state") or {}
        waiting = state.get("waiting")
        if waiting is not None and waiting.get("reason", "") not in _USUAL:
            return "failed", waiting.get("reason", "")[:64], _waiting(one, waiting, pod, namespace)
    ready = conditions.get("Ready")
    if ready is not None and ready["status"] == "True":
        return "ready", "ready", _last_end(containers, pod, namespace)
    return _starting(pod, containers, conditions, namespace)


def _ending(pod: Pod, ends: datetime, disrupted: Condition | None) -> tuple[str, str, str]:
    node = pod["spec"].get("nodeName", "")
    if timezone.now() - ends > _LATE:  # the API gives the moment at which its grace period is over
        return (
            "failed",
            "does not end",
            f"it should have ended at {ends:%H:%M:%S} UTC, so its node {node} may be lost: if that is gone for ever, "
            f"`kubectl delete node {node}` lets the pod go",
        )
    why = f": {clip(disrupted.get('message', ''))}" if disrupted is not None and disrupted.get("message") else ""
    return "unloading", "ending", f"it was told to end{why}"


def _failed(status: _Status, containers: Sequence[_Container], pod: Pod, namespace: str) -> str:
    reason, message = status.get("reason", ""), clip(status.get("message", ""))
    if reason == "Evicted":
        return f"its node ended it (Evicted): {message}. Let the pod request what it really uses, or give the node more"
    if reason:
        return f"it was ended ({plain(reason)[:64]}): {message or 'no message'}. Another pod takes its place"
    return _last_end(containers, pod, namespace) or "its containers have failed"


def _unscheduled(condition: Condition, nominated: str) -> str:
    message = clip(condition.get("message", "")) or "the scheduler gives no reason"
    if condition.get("reason") == "SchedulingGated":
        return f"a scheduling gate holds it back: {message}"
    if nominated:
        return f"node {nominated} makes room for it, and ends other pods: {message}"
    return f"no node takes it: {message}. Add a node, or lower what the pod requests or demands of a node"


def _waiting(one: _Container, waiting: _Waiting, pod: Pod, namespace: str) -> str:
    reason, message, name = waiting.get("reason", ""), clip(waiting.get("message", "")), one["name"]
    if reason in _FETCH:
        image = plain(one.get("image", ""))[:200]
        told = f": {message}" if message else ""
        return (
            f"image {image} of container {name} cannot be fetched{told}. Check its name and tag, and imagePullSecrets"
        )
    if reason == "CrashLoopBackOff":
        ended = _last_end([one], pod, namespace) or f"container {name} ends again and again"
        return f"{ended}. Between its starts the pauses grow, up to 5 min"
    named = "Check the ConfigMaps, Secrets, volumes and command that it names"
    return f"container {name} cannot be made: {message or reason}. {named}"


def _starting(
    pod: Pod, containers: Sequence[_Container], conditions: dict[str, Condition], namespace: str
) -> tuple[str, str, str]:
    """Return the state of a pod that has a node, no container that is refused, and is not ready."""
    restarted = _last_end(containers, pod, namespace)
    before = f"{restarted}. Now " if restarted else ""
    for one in containers:
        state = one.get("state") or {}
        if state.get("waiting") is not None or (not state and not one.get("ready")):
            said = f"{before}container {one['name']} is being made: its image or volumes are not there yet"
            return "starting", "starting", said
    serving = (pod.get("status") or {}).get("containerStatuses") or []
    if unready := [one for one in serving if not one.get("ready")]:
        name = unready[0]["name"]
        if unready[0].get("started") is False:
            return "starting", "starting", f"{before}the startup probe of container {name} has not passed yet"
        log = f"`kubectl -n {namespace} logs {pod['metadata']['name']} -c {name}`"
        said = f"{before}the readiness probe of container {name} does not pass: models may be loading, else see {log}"
        return "loading", "not ready", said
    if serving and "Ready" in conditions:
        if conditions["Ready"].get("reason") == "ReadinessGatesNotReady":
            said = f"a readiness gate is not open: {clip(conditions['Ready'].get('message', ''))}"
            return "loading", "not ready", said
        node = pod["spec"].get("nodeName", "")
        said = f"node {node} does not answer: unless it comes back, another pod takes this one's place after 5 min"
        return "down", "node lost", said
    return "starting", "starting", "its node has not begun with it yet"


def _is_done(one: _Container) -> bool:
    """Return whether a container that runs before the others has ended as it should."""
    ended = (one.get("state") or {}).get("terminated")
    return ended is not None and ended.get("exitCode") == 0


def _last_end(containers: Sequence[_Container], pod: Pod, namespace: str) -> str:
    """Return how often and why the container that was restarted most had to be; "" if none was."""
    some = [one for one in containers if one.get("restartCount", 0) or (one.get("state") or {}).get("terminated")]
    if not some:
        return ""
    one = max(some, key=lambda one: one.get("restartCount", 0))
    ended = (one.get("lastState") or {}).get("terminated") or (one.get("state") or {}).get("terminated")
    count = one.get("restartCount", 0)
    times = f"was restarted {count} time{'s' * (count != 1)}" if count else "has ended"
    if ended is None:
        return f"container {one['name']} {times}"
    code, reason = ended.get("exitCode", 0), plain(ended.get("reason", ""))[:64] or "no reason"
    at = moment(ended.get("finishedAt"))
    when = f" at {at:%Y-%m-%d %H:%M} UTC" if at is not None else ""
    last = f"container {one['name']} {times}, last because of {reason} (exit code {code}){when}"
    return f"{last}: {_remedy(one['name'], ended, pod, namespace)}"


def _remedy(name: str, ended: _Ended, pod: Pod, namespace: str) -> str:
    code, reason = ended.get("exitCode", 0), ended.get("reason", "")
    if reason == "OOMKilled":
        limits = [
            (one.get("resources") or {}).get("limits") or {}
            for one in pod["spec"].get("containers") or []
            if one["name"] == name
        ]
        limit = f" of {plain(limits[0]['memory'])[:20]}" if limits and "memory" in limits[0] else ""
        return f"raise its memory limit{limit}, or load fewer models"
    if reason in ("ContainerCannotRun", "StartError"):
        return clip(ended.get("message", "")) or "its command cannot be run"
    log = f"`kubectl -n {namespace} logs {pod['metadata']['name']} -c {name} --previous`"
    if code == 137:
        return f"it was killed, as after a liveness probe that failed or a grace period that was too short; see {log}"
    if code == 0:
        return f"it ended by itself, though it should serve; see {log}"
    return f"see {log}"


def _number(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""
