"""Reads what makes the pods of an environment: Deployments and StatefulSets, and the autoscalers that set their replicas."""

from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

import orjson

from dashboard.kubernetes.api import AUTOSCALERS, WORKLOADS, Cluster
from dashboard.kubernetes.pods import Condition, Meta, Owner, Pod, clip
from repository.core.plain_text import plain

REVISION = "deployment.kubernetes.io/revision"
_CONDITIONS = "autoscaling.alpha.kubernetes.io/conditions"  # what v2 has as status.conditions


class _Managed(TypedDict):
    manager: NotRequired[str]
    time: NotRequired[str | None]
    fieldsV1: NotRequired[dict[str, Any] | None]


class WorkloadMeta(Meta):
    generation: NotRequired[int]
    annotations: NotRequired[dict[str, str] | None]
    managedFields: NotRequired[list[_Managed] | None]


class _Spec(TypedDict):
    replicas: NotRequired[int]


class _Status(TypedDict):
    readyReplicas: NotRequired[int]
    updateRevision: NotRequired[str]
    conditions: NotRequired[list[Condition] | None]


class Workload(TypedDict):
    """A Deployment or StatefulSet."""

    metadata: WorkloadMeta
    spec: _Spec
    status: NotRequired[_Status]


class _Target(TypedDict):
    kind: str
    name: str


class _ScalerSpec(TypedDict):
    scaleTargetRef: _Target
    minReplicas: NotRequired[int | None]
    maxReplicas: int


class AutoscalerMeta(Meta):
    annotations: NotRequired[dict[str, str] | None]


class Autoscaler(TypedDict):
    """A HorizontalPodAutoscaler of autoscaling/v1."""

    metadata: AutoscalerMeta
    spec: _ScalerSpec


class AutoscalerList(TypedDict):
    items: list[Autoscaler]


class _ScaleMeta(TypedDict):
    name: str
    uid: NotRequired[str]
    resourceVersion: NotRequired[str]


class Scale(TypedDict):
    """The subresource of autoscaling/v1 by which the replicas of a workload are read and set."""

    metadata: _ScaleMeta
    spec: _Spec


class WorkloadRow(TypedDict):
    """A workload, as it is stored and shown. wanted, ready: None if it is no Deployment or StatefulSet, or cannot be read.

    uid, generation, revision: by which a change of its replicas or its pods is noticed. by, by_at: who set its replicas last.
    owner: the object that made the workload, and would undo changes of it. trouble: why it makes fewer pods than it should.
    """

    kind: str
    name: str
    wanted: int | None
    ready: int | None
    uid: str
    generation: int
    revision: str
    by: str
    by_at: str
    owner: str
    trouble: str


class AutoscalerRow(TypedDict):
    """An autoscaler, as it is stored and shown. kind: ScaledObject if KEDA made it, else HorizontalPodAutoscaler.

    hpa: the name of its HorizontalPodAutoscaler. said: what limits it or keeps it from scaling.
    """

    kind: str
    name: str
    hpa: str
    target: str
    min: int
    max: int
    said: str


def owners_of(pods: Iterable[Pod]) -> list[tuple[str, str]]:
    """Return kind and name of what made the pods: of a ReplicaSet its Deployment, by the hash that it adds to the name."""
    found: dict[tuple[str, str], None] = {}
    for pod in pods:
        owner = controller(pod["metadata"])
        if owner is None:
            found["Pod", pod["metadata"]["name"]] = None
            continue
        kind, name = owner["kind"], owner["name"]
        suffix = f"-{(pod['metadata'].get('labels') or {}).get('pod-template-hash', '')}"
        if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
            kind, name = "Deployment", name.removesuffix(suffix)
        found[kind, name] = None
    return sorted(found)


def controller(meta: Meta) -> Owner | None:
    """Return the object that made another one."""
    return next((one for one in meta.get("ownerReferences") or [] if one.get("controller")), None)


async def workload_of(cluster: Cluster, kind: str, name: str) -> WorkloadRow:
    """Return a workload. Of another kind than Deployment and StatefulSet only its name is known. Raises NotFound, Denied."""
    if kind not in WORKLOADS:
        return bare(kind, name)
    found: Workload = await cluster.read(WORKLOADS[kind], Workload, name)
    meta, status = found["metadata"], found.get("status") or {}
    owner = controller(meta)
    by, by_at = _setter(meta)
    return {
        **bare(kind, name),
        "wanted": max(found["spec"].get("replicas", 1), 0),
        "ready": max(status.get("readyReplicas", 0), 0),
        "uid": meta.get("uid", "")[:64],
        "generation": meta.get("generation", 0),
        "revision": (status.get("updateRevision") or (meta.get("annotations") or {}).get(REVISION, ""))[:100],
        "by": by,
        "by_at": by_at,
        "owner": plain(f"{owner['kind']} {owner['name']}")[:200] if owner is not None else "",
        "trouble": _trouble(status),
    }


async def autoscalers_of(cluster: Cluster) -> list[AutoscalerRow]:
    """Return the autoscalers of the namespace. Raises Denied."""
    listed: AutoscalerList = await cluster.read(AUTOSCALERS, AutoscalerList)
    return [_autoscaler(one) for one in listed["items"]]


def bare(kind: str, name: str) -> WorkloadRow:
    """Return a workload of which only the name is known."""
    return {
        "kind": kind,
        "name": plain(name)[:253],
        "wanted": None,
        "ready": None,
        "uid": "",
        "generation": 0,
        "revision": "",
        "by": "",
        "by_at": "",
        "owner": "",
        "trouble": "",
    }


def _setter(meta: WorkloadMeta) -> tuple[str, str]:
    """Return the program that set spec.replicas last, and when, by metadata.managedFields; "" if nobody is named."""
    for one in meta.get("managedFields") or []:
        spec = (one.get("fieldsV1") or {}).get("f:spec")
        if isinstance(spec, dict) and "f:replicas" in spec:
            return plain(one.get("manager", ""))[:100], (one.get("time") or "")[:40]
    return "", ""


def _trouble(status: _Status) -> str:
    """Return why a Deployment makes no pods, or why its update does not go on."""
    for one in status.get("conditions") or []:
        if one["type"] == "ReplicaFailure" and one["status"] == "True":
            return f"pods cannot be made: {clip(one.get('message', ''))}. Look at quotas and limits of the namespace"
        if one["type"] == "Progressing" and one["status"] == "False":
            return f"its update does not go on: {clip(one.get('message', ''))}. See its pods below"
    return ""


def _autoscaler(one: Autoscaler) -> AutoscalerRow:
    meta, spec = one["metadata"], one["spec"]
    owner = controller(meta)
    by_keda = owner is not None and owner["kind"] == "ScaledObject"
    target = spec["scaleTargetRef"]
    least = spec.get("minReplicas")
    return {
        "kind": "ScaledObject" if by_keda else "HorizontalPodAutoscaler",
        "name": plain(owner["name"] if by_keda and owner is not None else meta["name"])[:253],
        "hpa": meta["name"][:253],
        "target": f"{target['kind']} {target['name']}",
        "min": 1 if least is None else least,
        "max": spec["maxReplicas"],
        "said": _limits((meta.get("annotations") or {}).get(_CONDITIONS, "")),
    }


def _limits(text: str) -> str:
    """Return what keeps an autoscaler from scaling, of its conditions as JSON; "" if nothing does."""
    try:
        conditions = orjson.loads(text) if text else []
    except orjson.JSONDecodeError:
        return ""
    said = {"AbleToScale": "False", "ScalingActive": "False", "ScalingLimited": "True"}
    for one in conditions if isinstance(conditions, list) else []:
        if isinstance(one, dict) and said.get(str(one.get("type"))) == one.get("status"):
            return clip(str(one.get("message", "")))
    return ""
