"""Every route, of pages, REST and WebSockets, refuses whoever is not signed in, and every API method names its right."""

import asyncio
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor, Right
from dashboard.accounts.tokens import token_create
from dashboard.application import application
from dashboard.routing import websocket_urlpatterns
from dashboard.servers.services import server_ensure_local
from tests.support.serving_process import PATIENCE_S

# Open to everybody, on purpose.
OPEN = {"sign_in", "sign_out"}
_SAMPLES = {"int": "1", "uuid": str(uuid.UUID(int=0)), "str": "relu", "slug": "local", "path": "x"}
METHODS = ("get", "post", "put", "patch", "delete")


def routes(resolver: Any = None, prefix: str = "") -> Iterator[tuple[str, URLPattern]]:
    for pattern in (resolver or get_resolver()).url_patterns:
        path = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from routes(pattern, path)
        else:
            yield sample(path), pattern


def sample(path: str) -> str:
    return "/" + re.sub(r"<(?:(\w+):)?\w+>", lambda found: _SAMPLES[found[1] or "str"], path)


ROUTES = list(routes())
API = [(path, pattern) for path, pattern in ROUTES if path.startswith("/api/")]
PAGES = [(path, pattern) for path, pattern in ROUTES if not path.startswith("/api/")]


def test_there_are_routes_to_look_at() -> None:
    assert len(API) > 35
    assert len({pattern.name for _, pattern in API}) == len(API)


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "pattern"), API, ids=lambda value: value if isinstance(value, str) else "")
def test_the_api_refuses_the_anonymous(path: str, pattern: URLPattern) -> None:
    for method in METHODS:
        answer = getattr(APIClient(), method)(path)
        if pattern.name == "api_docs":  # a page, which leads to the sign-in
            assert (answer.status_code, answer["Location"]) == (302, f"/sign-in?next={path}"), method
            continue
        assert answer.status_code == 401, method
        if pattern.name != "api_schema":  # which is no JSON
            assert answer.json().keys() == {"error"}


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "pattern"), PAGES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_pages_send_the_anonymous_to_sign_in(path: str, pattern: URLPattern) -> None:
    if pattern.name in OPEN:
        return
    for method in ("get", "post"):
        answer = getattr(Client(), method)(path)
        assert answer.status_code == 302, method
        assert answer["Location"].startswith("/sign-in")


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "pattern"), API, ids=lambda value: value if isinstance(value, str) else "")
def test_a_token_without_a_right_opens_nothing(path: str, pattern: URLPattern, actor: Actor) -> None:
    rights: dict[str, Right] = pattern.callback.view_class.rights
    for method in METHODS:
        right = rights.get(method.upper())
        assert (right is not None) == hasattr(pattern.callback.view_class, method)
        other = "infer" if right is not Right.INFER else "read"
        _, secret = token_create(user=actor.user, actor=actor, name=method, rights=[other])
        answer = getattr(APIClient(), method)(path, HTTP_AUTHORIZATION=f"Bearer {secret}")
        assert answer.status_code == (403 if right else 405), method


def test_every_change_over_the_api_asks_for_more_than_seeing() -> None:
    # One's own tokens and jobs; a preview changes nothing.
    own = {"api_tokens", "api_token", "api_job_cancel", "api_config_preview"}
    for path, pattern in API:
        for method, right in pattern.callback.view_class.rights.items():
            assert method == "GET" or pattern.name in own or right is not Right.VIEW, path


@pytest.mark.django_db
def test_a_session_needs_its_csrf_token(actor: Actor) -> None:
    client = APIClient(enforce_csrf_checks=True)
    client.force_login(actor.user)
    assert client.get("/api/v1/me").status_code == 200
    answer = client.post("/api/v1/models/relu/load")
    assert answer.status_code == 403
    assert "CSRF" in answer.json()["error"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("route", [str(pattern.pattern) for pattern in websocket_urlpatterns])
def test_a_websocket_refuses_the_anonymous(route: str) -> None:
    server_ensure_local()

    async def connect() -> bool:
        headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
        socket = WebsocketCommunicator(application, sample(route), headers=headers)
        accepted, _ = await socket.connect(PATIENCE_S)
        await socket.disconnect(timeout=PATIENCE_S)
        return accepted

    assert asyncio.run(connect()) is False


@pytest.mark.django_db(transaction=True)
def test_a_websocket_refuses_another_sites_page() -> None:
    async def connect() -> bool:
        headers = [(b"host", b"localhost"), (b"origin", b"http://evil.example")]
        socket = WebsocketCommunicator(application, "/ws/live/", headers=headers)
        accepted, _ = await socket.connect(PATIENCE_S)
        await socket.disconnect(timeout=PATIENCE_S)
        return accepted

    assert asyncio.run(connect()) is False


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("signed_in", [False, True])
@pytest.mark.parametrize(
    ("path", "origin"),
    [
        ("/ws/no/such/", "http://localhost"),
        ("/", "http://localhost"),
        ("/ws/jobs/word/", "http://localhost"),
        ("/ws/servers/a/b/log/", "http://localhost"),
        ("/ws/live/", "http://["),
        ("/ws/live/", "http://localhost:port"),
        ("/ws/live/", "\xff"),
        ("/ws/live/", ""),
        ("/ws/jobs/99999999999999999999999999/", "http://localhost"),
        ("/ws/servers/%00/log/", "http://localhost"),
        ("/ws/live/?server=%00", "http://localhost"),
    ],
)
def test_an_odd_websocket_is_refused_in_words_or_before_it_is_accepted(
    path: str, origin: str, signed_in: bool, actor: Actor
) -> None:
    server_ensure_local()
    browser = Client()
    if signed_in:
        browser.force_login(actor.user)
    cookie = "; ".join(f"{name}={morsel.value}" for name, morsel in browser.cookies.items()).encode()

    async def connect() -> dict[str, Any]:
        headers = [(b"host", b"localhost"), (b"origin", origin.encode("latin-1")), (b"cookie", cookie)]
        socket = WebsocketCommunicator(application, path, headers=headers)
        accepted, _ = await socket.connect(PATIENCE_S)
        reported = await socket.receive_json_from(PATIENCE_S) if accepted else {"type": "error"}
        await socket.disconnect(timeout=PATIENCE_S)
        return reported

    assert asyncio.run(connect())["type"] == "error"
