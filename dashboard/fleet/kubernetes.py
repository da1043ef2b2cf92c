"""Reads which pods belong to a Kubernetes service, from the API of its cluster: EndpointSlices of discovery.k8s.io/v1.

The whole list is read each time: that needs one right, and notices an API that hangs. A watch would need a second right, and
would have to notice a silent connection and a version that is too old. The token and the CA file are read anew each time too,
because a cluster replaces those of its pods.
"""

import asyncio
import ipaddress
import os
import re
import ssl
from pathlib import Path
from typing import NamedTuple, NotRequired, TypedDict

import httpx
import orjson

from dashboard.fleet.discovery import Found
from dashboard.models import ServerEnvironment
from dashboard.servers.credentials import context
from dashboard.shared.exceptions import DashboardError, Unavailable
from dashboard.shared.json_shape import misfit
from dashboard.shared.sealing import unseal
from repository.core.plain_text import plain

ANSWER_S = 5.0
ANSWER_BYTES = 32 << 20
OWN = Path(
    "/var/run/secrets/kubernetes.io/serviceaccount"
)  # where a pod has the token and the CA of its service account
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


class _Access(NamedTuple):
    address: str
    token: str
    tls: ssl.SSLContext


async def pods_of(environment: ServerEnvironment) -> list[Found]:
    """Return the pods of an environment's service, also those that are not ready: they are ready when models are loaded.

    Raises DashboardError with a sentence that says what to change.
    """
    access = _access(environment)
    namespace, _, service = environment.kubernetes_service.partition("/")
    try:
        async with asyncio.timeout(ANSWER_S):
            status, content = await _get(
                access,
                f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
                {"labelSelector": f"kubernetes.io/service-name={service}"},
            )
    except TimeoutError:
        raise _failed(access, f"did not answer in {ANSWER_S:.0f} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _failed(access, _no_answer(str(error))) from None
    if status != 200:
        raise _failed(access, _refusal(status, content, namespace))
    slices = _slices(access, content)
    if not slices:
        raise Unavailable(
            f"the Kubernetes namespace {namespace} has no service {service}, or nothing has selected its pods"
        )
    return _found(slices)


def _access(environment: ServerEnvironment) -> _Access:
    """Return how to reach the API. The token of this process's own pod goes to no other address than its cluster's."""
    token = unseal(environment.kubernetes_token)
    if address := environment.kubernetes_address:
        return _Access(address, token, context(environment.kubernetes_ca_file, "", ""))
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise Unavailable("the dashboard runs in no Kubernetes cluster: give the address of the API, and a token")
    try:
        token = token or (OWN / "token").read_text().strip()
    except OSError:
        raise Unavailable(
            "the pod of the dashboard has no token of a service account: set automountServiceAccountToken, or give a token"
        ) from None
    ca_file = environment.kubernetes_ca_file or str(OWN / "ca.crt")
    return _Access(f"https://{f'[{host}]' if ':' in host else host}:{port}", token, context(ca_file, "", ""))


async def _get(access: _Access, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if access.token:
        headers["Authorization"] = f"Bearer {access.token}"
    async with (
        httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=access.tls, timeout=ANSWER_S) as client,
        client.stream("GET", f"{access.address}{path}", params=query, headers=headers) as response,
    ):
        content = bytearray()
        async for piece in response.aiter_raw():
            content += piece
            if len(content) > ANSWER_BYTES:
                raise _failed(access, f"answered with more than {ANSWER_BYTES >> 20} MiB")
        return response.status_code, bytes(content)


def _failed(access: _Access, clause: str) -> DashboardError:
    return Unavailable(f"the Kubernetes API at {access.address} {clause}")


def _no_answer(error: str) -> str:
    if "certificate" in error.lower():
        reason = (error.partition("certificate verify failed: ")[2] or error).partition(" (_ssl")[0]
        return f"has a certificate that is refused ({plain(reason)[:100]}): give the CA file of the cluster"
    if "SSL" in error:
        return "does not speak TLS as it should"
    return "does not answer: nothing listens there, or the connection was lost"


def _refusal(status: int, content: bytes, namespace: str) -> str:
    """Return what an answer of another status than 200 means, as a clause."""
    if status == 401:
        return "refuses the token (401): it is wrong or has expired, so give another one"
    if status == 403:
        named = re.search(rb'User \\?"([^"\\]{1,200})', content)
        user = plain(named[1].decode(errors="replace")) if named else "the owner of the token"
        return (
            f"does not let {user} read the service (403): a Role of namespace {namespace} must have a rule with apiGroups "
            "[discovery.k8s.io], resources [endpointslices] and verbs [list], and a RoleBinding must give it to that account"
        )
    if status == 404:
        return "knows no discovery.k8s.io/v1 (404): the address is another one's, or Kubernetes is older than 1.21"
    return f"answered with status {status}"


def _slices(access: _Access, content: bytes) -> list[_Slice]:
    try:
        value = orjson.loads(content)
        wrong = misfit(value, _Slices)
    except (orjson.JSONDecodeError, RecursionError):
        wrong = "."
    if wrong:
        raise _failed(access, f"gave an answer that is not understood, at {plain(wrong)[:100]}")
    items: list[_Slice] = value["items"]
    return items


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
