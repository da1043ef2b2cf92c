"""Finds the pods of a Kubernetes service (EndpointSlices of discovery.k8s.io/v1), or those with given labels.

A service takes a Role with apiGroups [discovery.k8s.io], resources [endpointslices] and verbs [list]; labels take pods instead.
"""

import ipaddress
from typing import NotRequired, TypedDict

from dashboard.fleet.discovery import Found
from dashboard.kubernetes.api import PODS, SLICES, Cluster, cluster_of
from dashboard.kubernetes.pods import ZONE, Pod, PodList, address_of, is_over, ports_of
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import Unavailable

_SERVED = ("http", "grpc", "metrics")  # names of ports


class _Port(TypedDict):
    name: NotRequired[str | None]
    port: NotRequired[int | None]


class _Target(TypedDict):
    kind: NotRequired[str]
    name: NotRequired[str]


class _Conditions(TypedDict):
    terminating: NotRequired[bool | None]


class _Endpoint(TypedDict):
    addresses: list[str]
    conditions: NotRequired[_Conditions | None]
    targetRef: NotRequired[_Target | None]
    zone: NotRequired[str | None]


class _Slice(TypedDict):
    addressType: str
    endpoints: NotRequired[list[_Endpoint] | None]
    ports: NotRequired[list[_Port] | None]


class _Slices(TypedDict):
    items: list[_Slice]


async def pods_of(environment: ServerEnvironment) -> list[Found]:
    """Return the pods of an environment, also those that are not ready: they are ready when models are loaded.

    Raises DashboardError with a sentence that says what to change.
    """
    async with cluster_of(environment) as cluster:
        if environment.kubernetes_service:
            return await _of_service(cluster, environment.kubernetes_service.partition("/")[2])
        return await _with_labels(cluster, environment.kubernetes_selector.partition("/")[2])


async def _of_service(cluster: Cluster, service: str) -> list[Found]:
    listed: _Slices = await cluster.read(SLICES, _Slices, labelSelector=f"kubernetes.io/service-name={service}")
    if not listed["items"]:
        raise Unavailable(
            f"the Kubernetes namespace {cluster.namespace} has no service {service}, or nothing has selected its pods"
        )
    return _found(listed["items"])


async def _with_labels(cluster: Cluster, labels: str) -> list[Found]:
    """Return the pods that have labels and an address. None is no error: a Deployment may be scaled to nothing."""
    listed: PodList = await cluster.read(PODS, PodList, labelSelector=labels)
    return [_of_pod(pod) for pod in listed["items"] if address_of(pod) and not is_over(pod)]


def _of_pod(pod: Pod) -> Found:
    meta, ports = pod["metadata"], ports_of(pod)
    served = tuple((name, ports[name]) for name in _SERVED if 0 < ports.get(name, 0) < 65536)
    zone = (meta.get("labels") or {}).get(ZONE, "")[:64]
    return Found(address_of(pod), meta["name"][:253], served, zone, bool(meta.get("deletionTimestamp")))


def _found(slices: list[_Slice]) -> list[Found]:
    """Return each pod of the slices once. One with addresses of both families is called by IPv4."""
    found: dict[str, Found] = {}
    for one in sorted(slices, key=lambda one: one["addressType"] == "IPv4"):
        ports = {port.get("name") or "": port.get("port") or 0 for port in one.get("ports") or []}
        served = tuple((name, ports[name]) for name in _SERVED if 0 < ports.get(name, 0) < 65536)
        for endpoint in one.get("endpoints") or []:
            address = _number(endpoint["addresses"])
            if not address:
                continue
            target, conditions = endpoint.get("targetRef") or {}, endpoint.get("conditions") or {}
            name = target.get("name", "")[:253] if target.get("kind") == "Pod" else ""
            leaving, zone = bool(conditions.get("terminating")), (endpoint.get("zone") or "")[:64]
            found[name or address] = Found(address, name, served, zone, leaving)
    return list(found.values())


def _number(addresses: list[str]) -> str:
    """Return the first address, "" if it is no IP address, as that of a service outside the cluster."""
    try:
        return str(ipaddress.ip_address(addresses[0]))
    except (ValueError, IndexError):
        return ""
