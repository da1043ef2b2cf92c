"""One installation drives several real servers that share the managed repository, each as its environment wants."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.deployments import order
from dashboard.deployments.advance import deployments_advance
from dashboard.examples.services import example_create
from dashboard.fleet import sources
from dashboard.fleet.discovery import GONE, Found, servers_found
from dashboard.fleet.selectors import environment_get, key_trouble
from dashboard.models import (
    AuditEntry,
    Deployment,
    DeploymentServer,
    Model,
    ModelState,
    ModelSync,
    ReleaseCheck,
    Server,
    ServerEnvironment,
    ServerState,
    Version,
)
from dashboard.servers.credentials import control_headers
from dashboard.servers.holdings import said_of
from dashboard.servers.selectors import server_get
from dashboard.shared.choices import DeploymentState, DesiredState, StepState
from dashboard.shared.sealing import unseal
from dashboard.supervisor import setup
from dashboard.supervisor.installation import SERVER_GONE
from dashboard.watch import discovery, watcher
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import FixedServer, fixed_server
from tests.dashboard.watch.watching import nothing, watching
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.long]

KEY = (
    settings.SERVER_CONTROL_KEY
)  # of the servers that the tests start; the rows here are of servers that are not bundled


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Callable[..., FixedServer]]:
    """fleet("models", flags): a started server with a repository of that name."""
    with ExitStack() as running:

        def start(folder: str, *flags: str) -> FixedServer:
            server = running.enter_context(fixed_server(tmp_path / folder))
            server.start(*flags)
            running.callback(server.kill)  # no request is under way that should be finished
            return server

        yield start


@pytest.fixture
def root(person: Callable[..., Any]) -> APIClient:
    client = APIClient()
    client.force_authenticate(person(is_superuser=True, name="root"))
    return client


def want(name: str, state: str = DesiredState.LOADED) -> Model:
    return Model.objects.create(name=name, desired_state=state, generation=1)


def ready(server: str) -> set[tuple[str, int]]:
    rows = ModelState.objects.filter(server__name=server, state="READY")
    return set(rows.values_list("model_name", "version"))


def test_a_server_that_hangs_delays_no_other_one(
    fleet: Callable[..., FixedServer], root: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    for name in ("first", "second"):
        (tmp_path / "models").mkdir(exist_ok=True)
        model_factory.onnx_identity(tmp_path / "models", name)
    want("first")
    made = root.post("/api/v1/environments", {"name": "eu", "everything": True, "control_key": KEY}, format="json")
    assert made.status_code == 201, made.data
    started = [fleet("models") for _ in range(3)]
    for number, server in enumerate(started):
        assert add(root, "eu", f"eu-{number}", server).status_code == 201
    hangs = started[0].process
    assert hangs is not None
    names = ("eu-1", "eu-2")

    def stop() -> None:
        os.kill(hangs.pid, signal.SIGSTOP)
        want("second")

    try:
        watching(
            (nothing, lambda: all(ready(f"eu-{number}") == {("first", 1)} for number in range(3))),
            (stop, lambda: all(ready(name) == {("first", 1), ("second", 1)} for name in names)),
        )
        assert ready("eu-0") != ready("eu-1")
    finally:
        os.kill(hangs.pid, signal.SIGCONT)
    watching((nothing, lambda: ready("eu-0") == ready("eu-1")))
    rows = root.get("/api/v1/environments/eu/servers").data["results"]
    assert [(row["wanted"], row["served"]) for row in rows] == [(2, 2)] * 3
    assert rows[0]["held"] == "Its repository holds 2 models, all of them ours."


def add(root: APIClient, environment: str, name: str, server: FixedServer, **more: Any) -> Any:
    urls = server.addresses()
    body = {"name": name, "address": urls["http_url"], "grpc": urls["grpc_url"], "metrics": urls["metrics_url"], **more}
    return root.post(f"/api/v1/environments/{environment}/servers", body, format="json")


def test_each_environment_serves_what_it_wants_and_another_repository_is_named(
    fleet: Callable[..., FixedServer],
    root: APIClient,
    published: Callable[..., Version],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    first = published(load=True, make_live=True)
    number = first.model.releases.latest("number").number
    published(make_live=True)
    for name in ("staging", "eu"):
        body = {"name": name, "control_key": KEY, "everything": name == "eu"}
        assert root.post("/api/v1/environments", body, format="json").status_code == 201
    assert root.post("/api/v1/environments", {"name": "theirs", "driven": False}, format="json").status_code == 201
    # One server of the managed repository, and one of somebody else's, which has loaded all at its start.
    managed = fleet("models")
    (tmp_path / "others").mkdir()
    for name in ("a", "b"):
        model_factory.onnx_identity(tmp_path / "others", name)
    others = fleet("others", "--model-control-mode=none")

    refused = add(root, "eu", "eu-0", others)
    assert refused.status_code == 409
    assert "start it with --model-control-mode=explicit" in refused.data["error"]
    key = root.patch("/api/v1/environments/theirs", {"control_key": "wrong"}, format="json")
    assert (key.status_code, key.data["has_control_key"]) == (200, True)
    refused = add(root, "theirs", "theirs-0", others)
    assert refused.status_code == 409
    assert "refuses the control key: give theirs the key of its flag --http-restricted-api" in refused.data["error"]
    root.patch("/api/v1/environments/theirs", {"control_key": KEY}, format="json")
    assert add(root, "theirs", "theirs-0", others).status_code == 201
    assert add(root, "eu", "eu-0", others, unchecked=True).status_code == 409  # its address is taken
    assert add(root, "staging", "staging-0", managed).status_code == 201

    def pin(release: int | None) -> None:
        answer = root.put("/api/v1/environments/staging/wanted/relu", {"release": release}, format="json")
        assert answer.status_code == 200, answer.data

    def take_out() -> None:
        assert root.delete("/api/v1/environments/staging/wanted/relu").status_code == 204

    watching(
        (nothing, lambda: ready("theirs-0") == {("a", 1), ("b", 1)} and bool(said_of(server_get("staging-0")))),
        (lambda: pin(number), lambda: ready("staging-0") == {("relu", 1)}),
        (lambda: pin(None), lambda: ready("staging-0") == {("relu", 2)}),
        (lambda: pin(number), lambda: ready("staging-0") == {("relu", 1)}),
        (take_out, lambda: not ready("staging-0")),
    )
    said = "Its repository holds 2 models, none of them ours."
    assert root.get("/api/v1/environments/theirs/servers").data["results"][0]["held"] == said
    # Neither it nor staging says anything of production, where no server answers.
    assert model_summary(first.model).state == "loading"
    assert not ModelSync.objects.exclude(error="").exists()
    # A driven server that has none of what is wanted is not asked to load it.
    assert root.delete("/api/v1/environments/theirs").status_code == 204
    assert add(root, "eu", "eu-0", others, unchecked=True).status_code == 201
    lacks = f"{said} It lacks 1 model that is wanted here: relu."
    watching((nothing, lambda: said_of(server_get("eu-0")) == lacks))
    assert not ModelSync.objects.filter(server__name="eu-0").exists()


def test_a_release_reaches_one_server_after_another_and_goes_back_when_one_is_killed(
    fleet: Callable[..., FixedServer],
    root: APIClient,
    published: Callable[..., Version],
    actor: Actor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "SERVERS_S", 0.2)
    monkeypatch.setattr(order, "AWAY_S", 1.0)
    model = published(make_live=True).model
    published(make_live=True)
    first, second = (next(one.number for one in model.releases.all() if one.versions == [number]) for number in (1, 2))
    ones = [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0] * 4}]
    expected = {"outputs": [{**ones[0], "name": "y"}]}
    example_create(model=model, actor=actor, name="ones", request={"inputs": ones}, expected=expected, golden=True)
    root.post("/api/v1/environments", {"name": "eu", "control_key": KEY}, format="json")
    started = [fleet("models") for _ in range(3)]
    for number, server in enumerate(started):
        assert add(root, "eu", f"eu-{number}", server).status_code == 201
    wanted = root.put("/api/v1/environments/eu/wanted/relu", {"release": first}, format="json")
    assert wanted.status_code == 200, wanted.data

    def deploy() -> None:
        body = {"model": "relu", "release": second}
        assert root.post("/api/v1/environments/eu/deployments", body, format="json").status_code == 201

    def serve(*versions: int) -> bool:
        return [ready(f"eu-{number}") for number in range(3)] == [{("relu", one)} if one else set() for one in versions]

    def reached() -> bool:
        deployments_advance()
        return DeploymentServer.objects.get(server__name="eu-1").state == StepState.CHANGING

    def stopped() -> bool:
        deployments_advance()
        return Deployment.objects.get().state == DeploymentState.STOPPED

    def act(what: str) -> None:
        answer = root.post(f"/api/v1/deployments/{Deployment.objects.get().pk}/{what}")
        assert answer.status_code == 200, answer.data

    watching(
        (nothing, lambda: serve(1, 1, 1)),
        (deploy, lambda: reached() and serve(2, 1, 1)),
        (started[1].kill, stopped),
    )
    assert Deployment.objects.get().error == "server eu-1 does not answer"
    checks = ReleaseCheck.objects.get(server__name="eu-0", release__number=second).steps
    assert [check["name"] for step in checks for check in step.get("checks", [])] == ["ones"]
    # A new watcher brings the killed server back to the release that had reached it.
    started[1].start()
    watching(
        (nothing, lambda: serve(2, 2, 1)),
        (lambda: act("go-back"), lambda: serve(1, 1, 1)),
    )
    assert Deployment.objects.get().state == DeploymentState.RETURNED


def test_a_dns_name_brings_servers_and_takes_them_away(
    db: None, root: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "LOOKUP_S", 0.05)
    monkeypatch.setattr(sources, "ANSWER_S", 0.05)
    body = {"name": "pods", "dns_name": "pods.example", "tls": True, "http_port": 9000}
    assert root.post("/api/v1/environments", body, format="json").status_code == 201
    answers: list[set[str] | OSError] = [{"127.0.0.2", "127.0.0.3"}, OSError(-2, "Name or service not known")]
    left = iter(answers)

    async def lookup(name: str) -> set[str]:
        assert name == "pods.example"
        answer = next(left, None)
        if answer is None:
            await asyncio.Event().wait()  # DNS that hangs
        if isinstance(answer, OSError):
            raise answer
        assert answer is not None
        return answer

    async def until(condition: Callable[[], bool]) -> None:
        running = asyncio.create_task(discovery.discover(asyncio.Event(), lookup))
        async with asyncio.timeout(PATIENCE_S):
            while not await sync_to_async(condition)():
                assert not running.done() or running.result()
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    def error() -> str:
        return ServerEnvironment.objects.get(name="pods").lookup_error

    async_to_sync(until)(lambda: "did not answer in time" in error())
    found = Server.objects.filter(environment__name="pods")
    assert [(one.name, one.http_url) for one in found] == [
        ("pods-127-0-0-2", "https://127.0.0.2:9000"),
        ("pods-127-0-0-3", "https://127.0.0.3:9000"),
    ]
    refused = root.delete("/api/v1/environments/pods/servers/pods-127-0-0-2")
    assert (refused.status_code, "was found by pods.example" in refused.data["error"]) == (409, True)
    # One answer without a server does not remove it; only a name that has not led to it for long does.
    environment = environment_get("pods")
    answer = [Found("127.0.0.2"), Found("::1")]
    assert servers_found(environment_id=environment.pk, source="pods.example", found=answer)
    assert found.all().count() == 3
    assert error() == ""
    found.filter(name="pods-127-0-0-3").update(named_at=F("named_at") - GONE * 2)
    assert servers_found(environment_id=environment.pk, source="pods.example", found=answer)
    assert not servers_found(environment_id=environment.pk, source="pods.example", found=answer)
    assert sorted(one.http_url for one in found.all()) == ["https://127.0.0.2:9000", "https://[::1]:9000"]
    assert async_to_sync(sources.addresses_of)("localhost") <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"name": "a b"}, "a name has letters, digits, hyphens and underscores"),
        ({"name": "production"}, "there is an environment named 'production' already"),
        ({"name": "x", "dns_name": "http://host"}, "a DNS name has letters"),
        ({"name": "x", "kubernetes_service": "triton"}, "is its namespace and its name, as prod/triton"),
        ({"name": "x", "kubernetes_service": "a/b", "dns_name": "a"}, "not by two of them"),
        ({"name": "x", "kubernetes_address": "https://a/b"}, "and nothing else"),
        ({"name": "x", "kubernetes_address": "http://a", "kubernetes_token": "t"}, "over https only"),
        ({"name": "x", "kubernetes_token": "a\nb"}, "a token has at most 8000 printable"),
        ({"name": "x", "kubernetes_ca_file": "/nowhere.pem"}, "the CA file '/nowhere.pem' is not there"),
        ({"name": "x", "http_port": 70000}, "a port is a number from 1 to 65535"),
        ({"name": "x", "control_header": "a: b"}, "the header of the key has letters"),
        ({"name": "x", "control_key": "a\nb"}, "a control key has at most 300 printable"),
        ({"name": "x", "ca_file": "/nowhere.pem"}, "the CA file '/nowhere.pem' is not there"),
        ({"name": "x", "certificate": "/nowhere.pem"}, "the client certificate '/nowhere.pem'"),
    ],
)
def test_what_an_environment_cannot_be_is_refused_in_a_sentence(
    root: APIClient, body: dict[str, Any], sentence: str
) -> None:
    Server.objects.create(name="local", bundled=True)  # makes production
    answer = root.post("/api/v1/environments", body, format="json")
    assert answer.status_code in (400, 409)
    assert sentence in answer.data["error"]
    assert ServerEnvironment.objects.count() == 1


@pytest.mark.parametrize(
    "address", ["ftp://a:1", "http://u:p@a:1", "http://a:99999", "http://", "a b", "http://a:1/x", "[::"]
)
def test_an_address_that_is_none_is_refused(root: APIClient, address: str) -> None:
    root.post("/api/v1/environments", {"name": "x"}, format="json")
    answer = root.post("/api/v1/environments/x/servers", {"name": "s", "address": address}, format="json")
    assert (answer.status_code, "an address" in answer.data["error"]) == (400, True)


def test_the_key_is_sealed_and_nowhere_told(root: APIClient, settings: Any) -> None:
    made = root.post("/api/v1/environments", {"name": "x", "control_key": "the secret"}, format="json")
    row = ServerEnvironment.objects.get(name="x")
    said = [
        str(made.data),
        row.control_key,
        *(f"{one.summary} {one.before} {one.after}" for one in AuditEntry.objects.all()),
    ]
    assert not any("the secret" in one for one in said)
    assert control_headers(Server(environment=row)) == {"slipway-control-key": "the secret"}
    # The bundled server's keys go to nobody else.
    root.patch("/api/v1/environments/x", {"control_key": ""}, format="json")
    assert control_headers(Server(environment=ServerEnvironment.objects.get(name="x"))) == {}
    row.save()
    settings.SECRET_KEY = "another"
    assert "SLIPWAY_SECRET_KEY has changed" in key_trouble(row)
    assert control_headers(Server(environment=row)) == {}


def test_people_without_the_rights_change_nothing(api: APIClient, root: APIClient) -> None:
    root.post("/api/v1/environments", {"name": "x"}, format="json")
    assert api.get("/api/v1/environments/x").status_code == 200
    assert api.post("/api/v1/environments", {"name": "y"}, format="json").status_code == 403
    assert api.patch("/api/v1/environments/x", {"driven": False}, format="json").status_code == 403
    assert api.post("/api/v1/environments/x/check", {"address": "http://127.0.0.1:1"}, format="json").status_code == 403
    down = root.post("/api/v1/environments/x/check", {"address": "http://127.0.0.1:1"}, format="json")
    assert "nothing listens at its address" in down.data["problems"][0]
    assert root.delete("/api/v1/environments/production").status_code in (404, 409)
    assert root.put("/api/v1/environments/x/wanted/nobody", {}, format="json").status_code == 404


def test_the_command_does_what_pages_do(db: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Model.objects.create(name="m")
    key = tmp_path / "key"
    key.write_text("the secret\n")
    call_command("environments", "add", "x", "--control-key-file", str(key), "--metrics-port", "9")
    call_command("environments", "want", "x", "m")
    with pytest.raises(CommandError, match="nothing listens"):
        call_command("environments", "add-server", "x", "x-1", "http://127.0.0.1:1")
    call_command("environments", "add-server", "x", "x-1", "http://127.0.0.1:1", "--unchecked")
    call_command("environments", "list")
    assert "x-1  http://127.0.0.1:1  stopped  0 of 1 models" in capsys.readouterr().out
    assert Server.objects.get().metrics_url == "http://127.0.0.1:9"
    assert control_headers(server_get("x-1")) == {"slipway-control-key": "the secret"}
    with pytest.raises(CommandError, match="There is no environment named 'y'"):
        call_command("environments", "change", "y", "--observed")
    call_command("environments", "remove-server", "x-1")
    call_command("environments", "unwant", "x", "m")
    call_command("environments", "remove", "x")
    assert not ServerEnvironment.objects.filter(name="x").exists()


def test_a_machine_keeps_the_name_of_its_server_and_takes_the_first_ones_when_that_is_gone(
    db: None, settings: Any, tmp_path: Path
) -> None:
    settings.SHARED_DIR = tmp_path / "shared"

    def start(machine: str) -> str:
        settings.DATA_DIR = tmp_path / machine
        settings.DATA_DIR.mkdir(exist_ok=True)
        server = setup._server()
        setup._claim(server)
        return server.name  # of machines that start at the same time

    assert [start(name) for name in ("a", "b", "a", "c", "b")] == ["local", "local-2", "local", "local-3", "local-2"]
    ServerState.objects.filter(server__name="local").update(checked_at=timezone.now() - SERVER_GONE)
    assert [start(name) for name in ("d", "a")] == ["local", "local-4"]


def test_pages_add_check_and_change_what_the_forms_say(as_person: Callable[..., Client]) -> None:
    page, looks = as_person(is_superuser=True), as_person()
    Model.objects.create(name="m")
    page.post(
        "/environments/new", {"name": "staging", "control_key": "the secret", "everything": "no", "http_port": "x"}
    )
    assert not ServerEnvironment.objects.filter(name="staging").exists()
    page.post("/environments/new", {"name": "staging", "control_key": "the secret", "everything": "no"})
    form = {"name": "s", "address": "http://127.0.0.1:1"}
    checked = page.post("/environments/staging/servers", {**form, "check": "1"}).content.decode()
    assert "nothing listens at its address" in checked
    assert 'name="unchecked"' in checked
    assert page.post("/environments/staging/servers", form).status_code == 409
    assert page.post("/environments/staging/servers", {**form, "unchecked": "on"}).status_code == 302
    page.post("/environments/staging/servers/s/change", {"address": "http://127.0.0.1:2"})
    assert Server.objects.get().grpc_url == "127.0.0.1:8001"
    assert "nothing listens" in page.post("/environments/staging/servers/s/check").content.decode()
    page.post("/environments/staging/wanted", {"model": "m", "release": ""})
    shown = text_of(looks, "/environments/staging/")
    assert "0 of 1 wanted" in shown
    assert "Settings</h2>" not in shown
    assert "Take out" not in shown
    assert looks.post("/environments/staging/remove").status_code == 403
    page.post("/environments/staging/change", {"driven": "no", "control_key": ""})
    row = ServerEnvironment.objects.get(name="staging")
    assert (row.driven, unseal(row.control_key)) == (False, "the secret")
    assert "the secret" not in text_of(page, "/environments/staging/")
    assert "its servers are only observed" in text_of(looks, "/environments/staging/")
    page.post("/environments/staging/change", {"ca_file": "/nowhere.pem"})
    assert "staging" in text_of(looks, "/environments/")
    page.post("/environments/staging/servers/s/remove")
    page.post("/environments/staging/remove")
    assert not Server.objects.exists()
