"""What is large passes through the real web process, or is refused by it, in bounded memory."""

import contextlib
import os
import re
import select
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dashboard.admission import LARGE_BODIES, ONE_PERSONS
from tests.dashboard.web_process import answers, finished, listening, migrate
from tests.support.serving_process import PATIENCE_S, wait_until

# The promise is under 150 MB for a 2 GB file. What grows at all grows with the first chunks.
SIZE = int(os.environ.get("LARGE_UPLOAD_BYTES", 256 << 20))
CHUNK = 8 << 20
ALLOWED_GROWTH = 150_000_000
Daphne = tuple[str, str, psutil.Process]  # address, token, process
PREPARE = """
from dashboard.access.authorisation import Actor
from dashboard.accounts.accounts import administrator_ensure
from dashboard.accounts.tokens import token_create
from django.contrib.auth import get_user_model
administrator_ensure()
user = get_user_model().objects.get()
other = get_user_model().objects.create_superuser("other")
for user in (user, other):
    print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read", "write"])[1])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("daphne") / "data"


@pytest.fixture(scope="module")
def tokens(data: Path) -> list[str]:
    """Those of two administrators."""
    migrate(data)
    return finished(data, "manage.py", "shell", "--no-imports", "-c", PREPARE).split()


@pytest.fixture(scope="module")
def daphne(data: Path, tokens: list[str]) -> Iterator[Daphne]:
    """(address, token, process) of a dashboard with administrators."""
    with listening(data, "-m", "daphne") as (address, process):
        yield address, tokens[0], process


@pytest.fixture
def other(tokens: list[str]) -> str:
    """The token of another one."""
    return tokens[1]


def test_the_web_process_stays_small_while_a_large_file_arrives(daphne: Daphne) -> None:
    address, token, process = daphne
    headers = {"Authorization": f"Bearer {token}"}
    chunk = os.urandom(CHUNK)
    with httpx.Client(base_url=f"{address}/api/v1", headers=headers, trust_env=False, timeout=PATIENCE_S) as client:
        client.get("/me").raise_for_status()
        before, peak = process.memory_info().rss, 0
        asked = {"model_name": "large", "files": [{"path": "m.onnx", "size": SIZE}]}
        upload = client.post("/uploads", json=asked).raise_for_status().json()["id"]
        for offset in range(0, SIZE, CHUNK):
            body = chunk[: SIZE - offset]
            answer = client.put(f"/uploads/{upload}/files/0", params={"offset": offset}, content=body)
            assert answer.json() == {"received": offset + len(body), "size": SIZE}
            peak = max(peak, process.memory_info().rss)
        assert client.delete(f"/uploads/{upload}").status_code == 204
    print(f"grew by {(peak - before) / 1e6:.0f} MB")
    assert peak - before < ALLOWED_GROWTH


# What one socket's buffers take in beside the server's own reading.
KERNEL = 8 << 20
MIB = 1 << 20


def head(method: str, path: str, length: int | None, *lines: str) -> bytes:
    """A request's head. length: None for a body in chunks."""
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", framing, *lines, "", ""]).encode()


def connect(address: str) -> socket.socket:
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def status_of(client: socket.socket) -> tuple[int, str]:
    """The answer's status, and its head with its body."""
    answer = b""
    while (end := answer.find(b"\r\n\r\n")) < 0 or len(answer) < end + 4 + length_of(answer[:end]):
        piece = client.recv(65536)
        if not piece:
            break
        answer += piece
    return int(answer.split(b" ")[1]), answer.decode()


def length_of(head: bytes) -> int:
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return int(found[1]) if found else 0


def asked(address: str, *request: Any) -> tuple[int, str]:
    """The answer to a head whose body is never sent."""
    with connect(address) as client:
        client.sendall(head(*request))
        return status_of(client)


def sent_until_answered(client: socket.socket, block: bytes, limit: int) -> int:
    """How many bytes of a body the server, and the kernel for it, took before there was an answer."""
    sent = 0
    while sent < limit and not select.select([client], [], [], 0)[0]:
        if select.select([], [client], [], 0.01)[1]:
            try:
                sent += client.send(block)
            except OSError:
                break
    return sent


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/sign-in", 413),
        ("POST", "/models/new", 413),
        ("POST", "/api/v1/models/relu/infer", 413),
        ("POST", "/api/v1/uploads", 413),
        ("POST", "/no/such/page", 404),
        ("PUT", "/models/", 405),
    ],
)
def test_forty_bodies_of_strangers_are_refused_before_they_are_read(
    daphne: Daphne, method: str, path: str, status: int
) -> None:
    address, _, process = daphne
    httpx.get(f"{address}/sign-in", trust_env=False, timeout=PATIENCE_S)
    before, accepted, size = process.memory_info().rss, 0, 65 * MIB
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connect(address)) for _ in range(40)]
        for client in clients:
            client.sendall(head(method, path, size))
        for client in clients:
            accepted += sent_until_answered(client, bytes(MIB), size)
            assert status_of(client)[0] == status
        peak = process.memory_info().rss
    print(f"took {accepted / 1e6:.0f} of {40 * size / 1e6:.0f} MB, grew by {(peak - before) / 1e6:.0f} MB")
    assert accepted < 40 * KERNEL
    assert peak - before < 30_000_000
    assert answers(address)


def test_a_body_needs_a_route_that_takes_it_and_somebody_who_may(daphne: Daphne) -> None:
    address, token, _ = daphne
    infer, chunk = "/api/v1/models/relu/infer", f"/api/v1/uploads/{uuid.uuid4()}/files/0"
    known, wrong = f"Authorization: Bearer {token}", "Authorization: Bearer slw_wrong"
    for status, request in [
        (401, ("POST", infer, MIB)),
        (401, ("POST", infer, MIB, wrong)),
        (401, ("POST", infer, None)),
        (401, ("POST", infer, MIB, "Cookie: slipway_session=wrong")),
        (401, ("PUT", chunk, 8 * MIB)),
        (413, ("PUT", chunk, 8 * MIB + 1, known)),
        (413, ("POST", infer, 64 * MIB + 1, known)),
        (403, ("POST", infer, 64 * MIB, known)),  # the token may read and write, but not infer
        (405, ("GET", infer, MIB, known)),
        (405, ("GET", "/", MIB)),
        (401, ("POST", "/models/relu/delete", MIB, known)),  # pages know no tokens
        (401, ("POST", "/models/relu/delete", MIB, "Expect: 100-continue")),
        (404, ("POST", "/static/app.js", MIB)),
        (100, ("PUT", chunk, 8 * MIB, known, "Expect: 100-continue")),
    ]:
        found, answer = asked(address, *request)
        assert found == status, request
        assert status == 100 or '{"error": "' in answer
        assert ("WWW-Authenticate: Bearer" in answer) == (status == 401 and "/api/" in request[1])


def test_a_body_in_chunks_ends_at_the_limit_of_its_route(daphne: Daphne) -> None:
    address, token, _ = daphne
    block = b"100000\r\n" + bytes(MIB) + b"\r\n"
    for path, lines, limit in (
        ("/sign-in", (), 64 << 10),
        ("/api/v1/models/relu/config", (f"Authorization: Bearer {token}",), 2 * MIB),
    ):
        method = "POST" if path == "/sign-in" else "PUT"
        with connect(address) as client:
            client.sendall(head(method, path, None, *lines))
            assert sent_until_answered(client, block, 200 * MIB) < limit + KERNEL
            assert status_of(client)[0] == 413


def test_all_bodies_together_are_bounded_and_so_are_those_of_one_person(daphne: Daphne, other: str) -> None:
    address, token, _ = daphne
    hers, all_together = ONE_PERSONS // (8 * MIB), LARGE_BODIES // (8 * MIB)
    with contextlib.ExitStack() as stack:

        def begin(whose: str, count: int) -> list[tuple[int, str]]:
            clients = [stack.enter_context(connect(address)) for _ in range(count)]
            for client in clients:
                client.sendall(head("POST", "/api/v1/uploads", 8 * MIB, *request_lines(whose)))
            return sorted(status_of(client) for client in clients)

        found = begin(token, hers + 1)
        assert [status for status, _ in found] == [100] * hers + [429]
        assert "Retry-After: " in found[-1][1]
        found = begin(other, all_together - hers + 1)
        assert [status for status, _ in found] == [100] * (all_together - hers) + [503]
        assert "Retry-After: " in found[-1][1]
        assert asked(address, "POST", "/sign-in", 60_000, "Expect: 100-continue")[0] == 100
    wait_until(lambda: asked(address, "POST", "/api/v1/uploads", 8 * MIB, *request_lines(token))[0] == 100)


def request_lines(token: str) -> tuple[str, str]:
    return f"Authorization: Bearer {token}", "Expect: 100-continue"


def test_a_websocket_of_no_such_address_is_refused_without_a_traceback(daphne: Daphne, data: Path) -> None:
    address, _, _ = daphne
    upgrade = (
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {'x' * 22}==",
        "Sec-WebSocket-Version: 13",
    )
    for path, origin in (("/ws/no/such/", "http://localhost"), ("/ws/live/", "http://["), ("/ws/live/?server=%00", "")):
        assert asked(address, "GET", path, 0, *upgrade, f"Origin: {origin}")[0] in (400, 403)
    assert "Traceback" not in (data.parent / "errors").read_text()


HASTY = """
import django
django.setup()
from dashboard import admission
admission.DEADLINE_S, admission.SLOWEST = 0.2, 1 << 40
from daphne.cli import CommandLineInterface
CommandLineInterface.entrypoint()
"""


def test_a_body_that_comes_too_slowly_is_given_up(daphne: Daphne, data: Path) -> None:
    _, token, _ = daphne
    with listening(data, "-c", HASTY) as (address, _):
        for request in (("POST", "/sign-in", 100), ("POST", "/api/v1/uploads", 8 * MIB, *request_lines(token)[:1])):
            assert asked(address, *request)[0] == 408
