"""WebSockets: who may listen, what a job and a log send, what is refused."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.testing import WebsocketCommunicator
from daphne.ws_protocol import WebSocketFactory
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from dashboard.access import sessions
from dashboard.application import application
from dashboard.models import Job, Model, Server, ServerState
from dashboard.servers.consumers import TAIL_LINES
from dashboard.servers.server_state import MACHINE
from dashboard.shared.choices import JobState
from dashboard.web import websockets
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.django_db

ORIGIN = b"http://localhost"
Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture
def cookie() -> bytes:
    """The cookie of a browser that signed in."""
    client = Client()
    client.force_login(get_user_model().objects.create_user("ada"))
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}".encode()


@pytest.fixture
def server() -> Server:
    return Server.objects.create(name="local", http_url="http://x", grpc_url="x", metrics_url="http://x", bundled=True)


def connect(path: str, cookie: bytes = b"", origin: bytes = ORIGIN) -> WebsocketCommunicator:
    headers = [(b"origin", origin), (b"host", b"localhost"), (b"cookie", cookie)]
    return WebsocketCommunicator(application, path, headers=headers)


def run(scenario: Scenario) -> None:
    async_to_sync(scenario)()


ADDRESSES = ("/ws/changes/", "/ws/live/", "/ws/jobs/1/", "/ws/servers/local/log/", "/ws/models/relu/log/")


@pytest.mark.parametrize("path", ADDRESSES)
def test_a_person_who_is_not_signed_in_is_refused(path: str, server: Server):
    async def scenario() -> None:
        connected, _ = await connect(path).connect(PATIENCE_S)
        assert not connected

    run(scenario)


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize("origin", [b"http://evil.example", b"http://localhost:8000", b""])
def test_a_page_of_another_origin_is_refused(path: str, origin: bytes, server: Server, cookie: bytes):
    async def scenario() -> None:
        connected, _ = await connect(path, cookie, origin).connect(PATIENCE_S)
        assert not connected

    run(scenario)


def test_every_address_is_covered_here():
    from dashboard.routing import websocket_urlpatterns

    assert len(websocket_urlpatterns) == len(ADDRESSES) + 1  # and one for any other address


def test_a_job_is_sent_whenever_it_changes_and_its_log_in_pieces(cookie: bytes):
    job = Job.objects.create(kind="inspect", state=JobState.RUNNING, progress=10, log="one\n")

    async def scenario() -> None:
        browser = connect(f"/ws/jobs/{job.pk}/", cookie)
        assert (await browser.connect(PATIENCE_S))[0]
        first = await browser.receive_json_from(PATIENCE_S)
        assert (first["progress"], first["log"]) == (10, "one\n")
        changed = Job.objects.filter(pk=job.pk).update
        await sync_to_async(changed)(progress=60, step="Reading", log="one\ntwo\n")
        second = await browser.receive_json_from(PATIENCE_S)
        assert (second["progress"], second["step"], second["log"]) == (60, "Reading", "two\n")
        await sync_to_async(changed)(state=JobState.SUCCEEDED, progress=100, result={"format": "onnx"})
        last = await browser.receive_json_from(PATIENCE_S)
        assert (last["state"], last["result"]) == ("succeeded", {"format": "onnx"})
        assert (await browser.receive_output(PATIENCE_S))["type"] == "websocket.close"

    run(scenario)


@pytest.mark.parametrize(
    "path",
    ["/ws/jobs/999/", "/ws/servers/none/log/", "/ws/servers/local/log/?process=../secret", "/ws/models/none/log/"],
)
def test_what_does_not_exist_is_said_in_a_sentence(path: str, server: Server, cookie: bytes):
    async def scenario() -> None:
        browser = connect(path, cookie)
        await browser.connect(PATIENCE_S)
        answer = await browser.receive_json_from(PATIENCE_S)
        assert answer["type"] == "error"
        assert answer["message"]
        assert (await browser.receive_output(PATIENCE_S))["code"] == websockets.NOT_FOUND

    run(scenario)


@pytest.mark.parametrize(
    "path", ["/ws/servers/local/log/?process=worker", "/ws/models/relu/log/", "/ws/servers/local-2/log/"]
)
def test_a_log_of_another_machine_is_said_to_be_there(
    path: str, server: Server, cookie: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SHARED_DIR", tmp_path / "shared")
    monkeypatch.setattr(settings, "LOG_DIR", tmp_path)
    Model.objects.create(name="relu")
    if "local-2" in path:  # a machine with a server of its own is asked for that of another one
        (tmp_path / "server.log").touch()
        second = Server.objects.create(name="local-2", bundled=True)
        ServerState.objects.create(server=second, info={MACHINE: "another"})

    async def scenario() -> None:
        browser = connect(path, cookie)
        await browser.connect(PATIENCE_S)
        assert "runs on another machine" in (await browser.receive_json_from(PATIENCE_S))["message"]
        assert (await browser.receive_output(PATIENCE_S))["code"] == websockets.NOT_FOUND

    run(scenario)


def test_a_log_begins_with_its_last_lines_and_follows(server: Server, cookie: bytes):
    path = Path(settings.LOG_DIR) / "server.log"
    path.write_text("".join(f"line {number}\n" for number in range(1000)))

    async def scenario() -> None:
        browser = connect("/ws/servers/local/log/", cookie)
        await browser.connect(PATIENCE_S)
        first = await browser.receive_json_from(PATIENCE_S)
        assert first["lines"][-1] == "line 999"
        assert len(first["lines"]) == TAIL_LINES
        with path.open("a") as file:
            file.write("and one more\n")
        assert (await browser.receive_json_from(PATIENCE_S))["lines"] == ["and one more"]
        await browser.disconnect(timeout=PATIENCE_S)

    try:
        run(scenario)
    finally:
        path.unlink()


def test_a_person_who_signs_out_is_shown_no_more(server: Server, cookie: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(websockets, "REVALIDATE_S", 0.05)
    key = cookie.decode().partition("=")[2]

    async def scenario() -> None:
        browser = connect("/ws/servers/local/log/", cookie)
        await browser.connect(PATIENCE_S)
        await browser.receive_json_from(PATIENCE_S)
        await sync_to_async(sessions.SessionStore(key).delete)()
        assert (await browser.receive_output(PATIENCE_S))["code"] == websockets.FORBIDDEN

    run(scenario)


def test_a_live_socket_says_that_its_server_is_down(server: Server, cookie: bytes):
    async def scenario() -> None:
        browser = connect("/ws/live/?model=digits", cookie)
        assert (await browser.connect(PATIENCE_S))[0]
        answer = await browser.receive_json_from(PATIENCE_S)
        assert (answer["type"], answer["server"]) == ("lost", "local")
        await browser.disconnect(timeout=PATIENCE_S)

    run(scenario)


def test_a_live_socket_is_about_an_environment_a_server_or_each_server(server: Server, cookie: bytes):
    second = {"name": "two", "http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x"}

    async def told(query: str, count: int = 1) -> list[dict[str, Any]]:
        browser = connect(f"/ws/live/?{query}", cookie)
        assert (await browser.connect(PATIENCE_S))[0]
        found = [await browser.receive_json_from(PATIENCE_S) for _ in range(count)]
        await browser.disconnect(timeout=PATIENCE_S)
        return found

    async def scenario() -> None:
        await sync_to_async(Server.objects.create)(**second)
        assert {(one["type"], one["server"]) for one in await told("each=yes", 2)} == {
            ("lost", "local"),
            ("lost", "two"),
        }
        [lost] = await told("environment=production")
        assert (lost["server"], lost["message"][:27]) == ("", "None of 2 servers answers: ")
        [lost] = await told("server=two")
        assert lost["server"] == "two"
        for query, words in (
            ("environment=none", "there is no environment named 'none'"),
            ("server=none", "there is no server named 'none'"),
            ("server=two&environment=production", "expected a server or an environment, not both"),
        ):
            assert await told(query) == [{"type": "error", "message": words}]

    run(scenario)


def test_what_a_browser_sends_is_not_kept_for_a_consumer_that_is_busy() -> None:
    socket = WebSocketFactory.protocol()
    socket.application_queue = asyncio.Queue()
    for _ in range(100):
        socket.onMessage(bytes(1 << 20), True)
    assert socket.application_queue.empty()
