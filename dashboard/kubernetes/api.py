"""Asks the API of a Kubernetes cluster, and says in one sentence what it must allow if it refuses.

Whole lists are read each time: that needs one right for each kind, and notices an API that hangs. A watch would need a second
right, and would have to notice a silent connection and a version that is too old. The token and the CA file are read anew each
time too, because a cluster replaces those of its pods.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import httpx
import orjson

from dashboard.models import ServerEnvironment
from dashboard.servers.credentials import context
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden, NotFound, Unavailable
from dashboard.shared.json_shape import misfit
from dashboard.shared.sealing import unseal
from repository.core.plain_text import plain

ANSWER_S = 5.0  # for all that one look or change asks
ANSWER_BYTES = 32 << 20
OWN = Path(
    "/var/run/secrets/kubernetes.io/serviceaccount"
)  # where a pod has the token and the CA of its service account
MANAGER = "slipway"  # by this name the cluster keeps what this dashboard has changed


class Kind(NamedTuple):
    """A kind of objects. group: "" for the core. resource: with a subresource, as "deployments/scale"."""

    group: str
    version: str
    resource: str

    def path(self, namespace: str, name: str = "") -> str:
        """Return the path of one object, or of all in a namespace."""
        resource, _, part = self.resource.partition("/")
        group = f"/apis/{self.group}" if self.group else "/api"
        return "/".join(filter(None, (f"{group}/{self.version}/namespaces/{namespace}/{resource}", name, part)))


SLICES = Kind("discovery.k8s.io", "v1", "endpointslices")
PODS = Kind("", "v1", "pods")
SERVICES = Kind("", "v1", "services")
EVENTS = Kind("", "v1", "events")
# v1 is in every release since 1.2; its annotations have what v2 has in fields.
AUTOSCALERS = Kind("autoscaling", "v1", "horizontalpodautoscalers")
WORKLOADS = {"Deployment": Kind("apps", "v1", "deployments"), "StatefulSet": Kind("apps", "v1", "statefulsets")}


_ListMeta = TypedDict("_ListMeta", {"continue": NotRequired[str | None]})


class _Part(TypedDict):
    """A list, or a part of it."""

    items: list[Any] | None
    metadata: NotRequired[_ListMeta | None]


_RULE = "apiGroups [{}], resources [{}] and verbs [{}]"
_RULES = re.compile(r"apiGroups \[[^]]*\], resources \[[^]]*\] and verbs \[[^]]*\]")


def rules_in(said: str) -> list[str]:
    """Return the rules of a Role that a sentence asks for."""
    return _RULES.findall(said)


class Denied(Forbidden):
    """The cluster lets the dashboard's account not do something. rule: what a Role must have."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API of an environment's cluster, while it is open. All its errors are a DashboardError with a sentence."""

    address: str
    namespace: str
    token: str
    client: httpx.AsyncClient

    async def read(self, kind: Kind, shape: Any, name: str = "", **query: str) -> Any:
        """Return one object, or a list of them, checked against a TypedDict.

        Raises NotFound, Denied, and Unavailable if the API does not answer as it should.
        """
        if name:
            return self._fitting(await self._ask("GET", kind, name, query), shape)
        items: list[Any] = []
        size, part = 0, "begin"
        while part:  # nobody asks for parts, but an API may answer in some
            content = await self._ask("GET", kind, name, query)
            size += len(content)
            if size > ANSWER_BYTES:
                raise self._too_large()
            found: _Part = self._fitting(content, _Part)
            items += found["items"] or []
            before, part = part, (found.get("metadata") or {}).get("continue") or ""
            if part and part == before:
                raise self.failed("gives the same part of a list again and again")
            query = {**query, "continue": part}
        return self._fits({"items": items}, shape)

    async def replace(self, kind: Kind, shape: Any, name: str, body: Mapping[str, object]) -> Any:
        """Replace an object by one with its resourceVersion, and return it. Raises also Conflict if it has changed since."""
        return self._fitting(await self._ask("PUT", kind, name, {"fieldManager": MANAGER}, body), shape)

    async def _ask(
        self, method: str, kind: Kind, name: str, query: Mapping[str, str], body: Mapping[str, object] | None = None
    ) -> bytes:
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        path, sent = f"{self.address}{kind.path(self.namespace, name)}", None if body is None else orjson.dumps(body)
        async with self.client.stream(method, path, params=query, headers=headers, content=sent) as response:
            content = bytearray()
            async for piece in response.aiter_raw():
                content += piece
                if len(content) > ANSWER_BYTES:
                    raise self._too_large()
        if response.status_code == 429:
            wait = plain(response.headers.get("Retry-After", ""))[:20]
            raise self.failed(
                f"has too many requests to answer (429): try again in {wait if wait.isdigit() else 'some'} s"
            )
        if response.status_code != 200:
            raise self._refusal(response.status_code, bytes(content), kind, name, method)
        return bytes(content)

    def failed(self, clause: str) -> DashboardError:
        return Unavailable(f"the Kubernetes API at {self.address} {clause}")

    def _refusal(self, status: int, content: bytes, kind: Kind, name: str, method: str) -> DashboardError:
        at = f"the Kubernetes API at {self.address}"
        if status == 401:
            return self.failed("refuses the token (401): it is wrong or has expired, so give another one")
        if status == 403:
            verb = {"PUT": "update"}.get(method, "get" if name else "list")
            group = kind.group or '""'
            rule = _RULE.format(group, kind.resource, verb)
            return Denied(
                f"{at} does not let {_user(content)} {verb} {kind.resource} (403): a Role of namespace {self.namespace} must "
                f"have a rule with {rule}, and a RoleBinding must give it to that account",
                rule,
            )
        if status == 404 and name:
            resource = kind.resource.partition("/")[0].removesuffix("s")
            return NotFound(f"the Kubernetes namespace {self.namespace} has no {resource} {name}")
        if status == 404:
            known = f"{kind.group}/{kind.version}".lstrip("/")
            older = ", or Kubernetes is older than 1.21" if kind == SLICES else ""
            return NotFound(f"{at} knows no {known} (404): the address is another one's{older}")
        if status == 409:
            return Conflict(
                f"somebody else changed {name} in the cluster at the same moment: look at it, and try again"
            )
        told = f": {message}" if (message := _message(content)) and status in (400, 422) else ""
        return self.failed(f"answered with status {status}{told}")

    def _too_large(self) -> DashboardError:
        return self.failed(f"answered with more than {ANSWER_BYTES >> 20} MiB")

    def _fitting(self, content: bytes, shape: Any) -> Any:
        try:
            value = orjson.loads(content)
        except orjson.JSONDecodeError:
            value = None
        return self._fits(value, shape)

    def _fits(self, value: object, shape: Any) -> Any:
        if wrong := misfit(value, shape):
            raise self.failed(f"gave an answer that is not understood, at {plain(wrong)[:100]}")
        return value


@asynccontextmanager
async def cluster_of(environment: ServerEnvironment) -> AsyncIterator[Cluster]:
    """Open the API of an environment's cluster for ANSWER_S. Raises DashboardError with a sentence that says what to change."""
    address, token, tls = _access(environment)
    client = httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=tls, timeout=ANSWER_S)
    found = Cluster(address, environment.namespace, token, client)
    try:
        async with asyncio.timeout(ANSWER_S), client:
            yield found
    except TimeoutError:
        raise found.failed(f"did not answer in {ANSWER_S:.0f} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise found.failed(_no_answer(str(error))) from None


def _access(environment: ServerEnvironment) -> tuple[str, str, ssl.SSLContext]:
    """Return the API's address, a token and TLS. The token of this process's own pod goes to its own cluster only."""
    token = unseal(environment.kubernetes_token)
    if address := environment.kubernetes_address:
        return address, token, context(environment.kubernetes_ca_file, "", "")
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
    return f"https://{f'[{host}]' if ':' in host else host}:{port}", token, context(ca_file, "", "")


def _no_answer(error: str) -> str:
    if "certificate" in error.lower():
        reason = (error.partition("certificate verify failed: ")[2] or error).partition(" (_ssl")[0]
        return f"has a certificate that is refused ({plain(reason)[:100]}): give the CA file of the cluster"
    if "SSL" in error:
        return "does not speak TLS as it should"
    return "does not answer: nothing listens there, or the connection was lost"


def _user(content: bytes) -> str:
    named = re.search(rb'User \\?"([^"\\]{1,200})', content)
    return plain(named[1].decode(errors="replace")) if named else "the owner of the token"


def _message(content: bytes) -> str:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return ""
    said = value.get("message") if isinstance(value, dict) else None
    return plain(said)[:200] if isinstance(said, str) else ""
