"""What is large passes through the real web process, or is refused by it, in bounded memory."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx
import psutil
import pytest
from django.conf import settings

from tests.ports import free_port
from tests.serving_process import PATIENCE_S, START_TIMEOUT_S, wait_until

# The promise is under 150 MB for a 2 GB file. What grows at all grows with the first chunks.
SIZE = int(os.environ.get("LARGE_UPLOAD_BYTES", 256 << 20))
CHUNK = 8 << 20
ALLOWED_GROWTH = 150_000_000
PREPARE = """
from dashboard.authorisation import Actor
from dashboard.services.accounts import administrator_ensure
from dashboard.services.tokens import token_create
from django.contrib.auth import get_user_model
administrator_ensure()
user = get_user_model().objects.get()
print(token_create(user=user, actor=Actor(user=user), name="t", rights=["read", "write"])[1])
"""


@pytest.fixture(scope="module")
def daphne(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, psutil.Process]]:
    """(address, token, process) of a dashboard with an administrator."""
    data = tmp_path_factory.mktemp("daphne") / "data"
    environment = {**os.environ, "SLIPWAY_DATA": str(data), "DJANGO_SETTINGS_MODULE": "dashboard.settings"}
    where = {"cwd": settings.BASE_DIR, "env": environment}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], check=True, timeout=START_TIMEOUT_S, **where)
    shell = [sys.executable, "manage.py", "shell", "--no-imports", "-c", PREPARE]
    token = subprocess.run(
        shell, check=True, capture_output=True, text=True, timeout=START_TIMEOUT_S, **where
    ).stdout.strip()
    port = free_port()
    command = [sys.executable, "-m", "daphne", "-b", "127.0.0.1", "-p", str(port), "dashboard.asgi:application"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **where)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: answers(address) or process.poll() is not None, START_TIMEOUT_S, "an answer")
        assert process.poll() is None
        yield address, token, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", trust_env=False, timeout=PATIENCE_S).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_web_process_stays_small_while_a_large_file_arrives(daphne: tuple[str, str, psutil.Process]) -> None:
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


def test_a_body_over_the_limit_is_refused_while_it_arrives(daphne: tuple[str, str, psutil.Process]) -> None:
    address, _, process = daphne
    httpx.get(f"{address}/sign-in", trust_env=False, timeout=PATIENCE_S)
    before = process.memory_info().rss
    host, port = address.removeprefix("http://").split(":")
    for head in (b"Content-Length: 2000000000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        chunked = b"chunked" in head
        block = (b"100000\r\n" + b"x" * (1 << 20) + b"\r\n") if chunked else b"x" * (1 << 20)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\n" + head)
            sent = send_until_refused(client, block)
        assert sent < 200
    assert process.memory_info().rss - before < ALLOWED_GROWTH
    assert answers(address)


def send_until_refused(client: socket.socket, block: bytes, limit: int = 2000) -> int:
    """How many blocks the server took before it closed the connection."""
    for sent in range(limit):
        try:
            client.sendall(block)
        except OSError:
            return sent
    return limit
