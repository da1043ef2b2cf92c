"""The pods of a Kubernetes service become servers. A stand-in gives the answers of the cluster's API; the servers are real."""

import asyncio
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import SYSTEM
from dashboard.deployments.advance import deployment_look
from dashboard.deployments.services import deployment_start
from dashboard.kubernetes import api as kubernetes
from dashboard.models import AuditEntry, ModelState, Server, ServerEnvironment, Version
from dashboard.servers.credentials import tls_name
from dashboard.watch import discovery, watcher
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import fixed_server
from tests.dashboard.uploads.file_server import FileServer, WebFile
from tests.support.certificates import Authority
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.long]

SLICES = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
FORBIDDEN = {
    "kind": "Status",
    "message": 'endpointslices is forbidden: User "system:serviceaccount:prod:slipway" cannot list resource',
}


def pod(name: str, address: str = "127.0.0.1", *, terminating: bool = False, zone: str = "a") -> dict[str, Any]:
    """An endpoint whose pod is not ready yet."""
    conditions = {"ready": False, "serving": False, "terminating": terminating}
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}, "zone": zone}


def piece(*pods: dict[str, Any], family: str = "IPv4", **ports: int) -> dict[str, Any]:
    """An EndpointSlice, in which all pods have the same ports."""
    named = [{"name": name, "port": port} for name, port in ports.items()]
    return {"addressType": family, "endpoints": list(pods), "ports": named or None}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LOOKUP_S", 0.2)


def lists(cluster: FileServer, *slices: dict[str, Any]) -> None:
    cluster.files[SLICES] = WebFile(json.dumps({"items": slices}).encode())


def asked(cluster: FileServer) -> tuple[str, dict[str, str]]:
    """The last request for the slices."""
    return next(one for one in reversed(cluster.requests) if one[0].startswith(SLICES))


@pytest.fixture
def eu(root: APIClient, cluster: FileServer, authority: Authority) -> ServerEnvironment:
    body = {
        "name": "eu",
        "everything": True,
        "control_key": settings.SERVER_CONTROL_KEY,
        "kubernetes_service": "prod/triton",
        "kubernetes_address": cluster.url,
        "kubernetes_token": "of the account",
        "kubernetes_ca_file": str(authority.cert),
    }
    made = root.post("/api/v1/environments", body, format="json")
    assert made.status_code == 201, made.data
    return ServerEnvironment.objects.get(name="eu")


def watching(*phases: tuple[Callable[[], object], Callable[[], bool]], driving: bool = True) -> None:
    """Look servers up and watch them; in each phase do something, and wait for its condition.

    SERVERS_S stays what it is: a server that was found is watched at once. driving: whether servers are watched too.
    """

    async def scenario() -> None:
        changed = asyncio.Event()
        parts = [asyncio.create_task(discovery.discover(changed))]
        if driving:
            parts.append(asyncio.create_task(watcher.watch_servers(changed)))
        try:
            for act, condition in phases:
                await sync_to_async(act)()
                async with asyncio.timeout(PATIENCE_S):
                    while not await sync_to_async(condition)():
                        assert not any(part.done() for part in parts)
                        await asyncio.sleep(0.05)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)

    async_to_sync(scenario)()


def serves(server: str) -> set[int]:
    return set(ModelState.objects.filter(server__name=server, state="READY").values_list("version", flat=True))


def names() -> list[str]:
    return list(Server.objects.values_list("name", flat=True))


def error() -> str:
    return ServerEnvironment.objects.get(name="eu").lookup_error


def test_pods_are_driven_before_they_are_ready_and_left_alone_when_they_end(
    cluster: FileServer,
    eu: ServerEnvironment,
    root: APIClient,
    published: Callable[..., Version],
    as_person: Callable[..., Client],
    tmp_path: Path,
) -> None:
    model = published(load=True, make_live=True).model
    with ExitStack() as running:

        def start() -> dict[str, int]:
            server = running.enter_context(fixed_server(tmp_path / "models"))
            server.start()
            running.callback(server.kill)
            urls = server.addresses()
            return {name: int(urls[f"{name}_url"].rpartition(":")[2]) for name in ("http", "grpc", "metrics")}

        old, new = start(), start()
        stays = piece(pod("triton-1", zone="b"), **new)

        lists(cluster, piece(pod("triton-0"), **old))
        watching(
            (lambda: None, lambda: serves("triton-0") == {1}),
            (lambda: lists(cluster, piece(pod("triton-0"), **old), stays), lambda: serves("triton-1") == {1}),
            (
                lambda: lists(cluster, piece(pod("triton-0", terminating=True), **old), stays),
                lambda: Server.objects.get(name="triton-0").leaving,
            ),
            (lambda: published(make_live=True), lambda: serves("triton-1") == {2}),
        )
        assert serves("triton-0") == {1}
        assert list(Server.objects.values_list("name", "zone")) == [("triton-0", "a"), ("triton-1", "b")]
        assert "is ending" in text_of(as_person(), "/environments/eu/")
        rows = root.get("/api/v1/environments/eu/servers").data["results"]
        assert [(row["server"]["name"], row["wanted"], row["served"]) for row in rows][1] == ("triton-1", 1, 1)
        refused = root.put("/api/v1/environments/eu/servers/triton-1/zone", {"zone": "c"}, format="json")
        assert (refused.status_code, "Kubernetes says in which zone" in refused.data["error"]) == (409, True)
        number = next(one.number for one in model.releases.all() if one.versions == [1])
        deployment = deployment_start(environment=eu, model=model, release=number, actor=SYSTEM)
        deployment_look(deployment)
        assert list(deployment.steps.values_list("server__name", flat=True)) == ["triton-1"]
        # It was seen to end, so it is not kept for a minute. What a watcher writes of it meanwhile could not be rolled back.
        watching((lambda: lists(cluster, stays), lambda: names() == ["triton-1"]), driving=False)
    path, headers = asked(cluster)
    assert parse_qs(urlsplit(path).query) == {"labelSelector": ["kubernetes.io/service-name=triton"]}
    assert headers["Authorization"] == "Bearer of the account"


def test_servers_stay_while_the_cluster_says_nothing_of_them(cluster: FileServer, eu: ServerEnvironment) -> None:
    lists(cluster, piece(pod("triton-0"), pod("triton-1")))

    def down() -> None:
        cluster.files[SLICES] = WebFile(status=503)

    watching(
        (lambda: None, lambda: names() == ["triton-0", "triton-1"]),
        (down, lambda: "answered with status 503; the servers that it led to stay" in error()),
        # One pod vanishes without having ended, as when a selector is mistyped; and a pod comes again elsewhere.
        (lambda: lists(cluster, piece(pod("triton-0", "127.0.0.2"))), lambda: not error()),
    )
    assert names() == ["triton-0", "triton-1"]
    assert Server.objects.get(name="triton-0").http_url == "http://127.0.0.2:8000"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (WebFile(status=401), "refuses the token (401): it is wrong or has expired"),
        (
            WebFile(json.dumps(FORBIDDEN).encode(), status=403),
            "does not let system:serviceaccount:prod:slipway list endpointslices (403): a Role of namespace prod must have a "
            "rule with apiGroups [discovery.k8s.io], resources [endpointslices] and verbs [list]",
        ),
        (WebFile(b"{}", status=403), "does not let the owner of the token list endpointslices"),
        (None, "knows no discovery.k8s.io/v1 (404)"),
        (WebFile(redirect="/elsewhere"), "answered with status 302"),
        (WebFile(b"<html>"), "gave an answer that is not understood, at ."),
        (WebFile(b'{"items": [{"addressType": "IPv4", "endpoints": [{}]}]}'), "at .items.0.endpoints"),
        (WebFile(b'{"items": []}'), "the Kubernetes namespace prod has no service triton"),
        (WebFile(b" " * 2000), "answered with more than 0 MiB"),
        (WebFile(b'{"items": []}', holds_at=1), "did not answer in 0 s"),
        (
            WebFile(b"{", extra=-1, breaks_after=[0]),
            "does not answer: nothing listens there, or the connection was lost",
        ),
    ],
)
def test_what_the_cluster_must_allow_is_said_by_the_check(
    cluster: FileServer,
    eu: ServerEnvironment,
    root: APIClient,
    monkeypatch: pytest.MonkeyPatch,
    answer: WebFile | None,
    sentence: str,
) -> None:
    monkeypatch.setattr(kubernetes, "ANSWER_BYTES", 1000)
    if answer is not None:
        cluster.files[SLICES] = answer
    if answer is not None and answer.holds_at:
        monkeypatch.setattr(kubernetes, "ANSWER_S", 0.3)
    found = root.post("/api/v1/environments/eu/source/check")
    assert found.status_code == 200, found.data
    assert sentence in found.data["problems"][0]


def test_settings_are_tried_before_they_are_saved(
    cluster: FileServer,
    eu: ServerEnvironment,
    root: APIClient,
    api: APIClient,
    as_person: Callable[..., Client],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A pod with addresses of both families, one that is no pod, and a service outside the cluster.
    slices = [piece({"addresses": ["10.0.0.9"]}), piece({"addresses": ["host.example"]}, family="FQDN")]
    lists(cluster, piece(pod("triton.0"), http=9000), piece(pod("triton.0", "::1"), family="IPv6"), *slices)
    told = "The Kubernetes service prod/triton leads to 2 servers: triton.0 127.0.0.1 a, 10.0.0.9."

    def check(**given: str) -> str:
        answer = root.post("/api/v1/environments/eu/source/check", given, format="json")
        assert answer.status_code in (200, 400), answer.data
        return str(answer.data.get("error") or "".join(answer.data["problems"]) or answer.data["said"])

    assert check() == told
    (tmp_path / "token").write_text("of the account, renewed\n")
    call_command("environments", "change", "eu", "--kubernetes-token-file", str(tmp_path / "token"))
    call_command("environments", "check-source", "eu")
    assert asked(cluster)[1]["Authorization"] == "Bearer of the account, renewed"
    assert told in capsys.readouterr().out
    assert api.post("/api/v1/environments/eu/source/check").status_code == 403
    page = as_person(is_superuser=True)
    form = {"kubernetes_service": "prod/triton", "kubernetes_token": "", "check": "1"}
    assert told in page.post("/environments/eu/change", form).content.decode()
    assert "A Kubernetes service is its namespace and its name" in (
        page.post("/environments/eu/change", {**form, "kubernetes_service": "x"}).content.decode()
    )
    assert "a certificate that is refused" in check(kubernetes_ca_file="")
    # Nobody sends the stored token to an address of theirs.
    assert "the token goes to another address now" in check(kubernetes_address="https://127.0.0.1:1")
    assert "nothing listens there" in check(kubernetes_address="https://127.0.0.1:1", kubernetes_token="x")
    assert "neither a DNS name nor" in check(kubernetes_service="")
    # The cluster in which the dashboard runs, with the files of its service account.
    own = {"kubernetes_address": "", "kubernetes_token": "", "kubernetes_ca_file": ""}
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "runs in no Kubernetes cluster" in check(**own)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", cluster.url.rpartition(":")[2])
    monkeypatch.setattr(kubernetes, "OWN", tmp_path / "authority")
    assert "has no token of a service account" in check(**own)
    (tmp_path / "authority" / "token").write_text("of the pod\n")
    (tmp_path / "authority" / "root.pem").rename(tmp_path / "authority" / "ca.crt")
    assert check(**own) == told
    assert asked(cluster)[1]["Authorization"] == "Bearer of the pod"
    row = ServerEnvironment.objects.get(name="eu")
    said = [str(root.get("/api/v1/environments/eu").data), row.kubernetes_token, text_of(page, "/environments/eu/")]
    said += [f"{one.summary} {one.before} {one.after}" for one in AuditEntry.objects.all()]
    assert not any("of the account" in one for one in said)
    assert root.get("/api/v1/environments/eu").data["has_kubernetes_token"] is True
    assert tls_name(
        Server(environment=ServerEnvironment(kubernetes_service="prod/triton", tls=True), named_at=row.created_at)
    ) == ("triton.prod.svc")
