"""The load generator tells the truth: latencies from when a request was due, failures with their reasons, every transport."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from dashboard.loads import load
from dashboard.loads.arrivals import Closed, Poisson, moments
from dashboard.loads.connection import CLOSED, Target
from dashboard.loads.outcome import outcome, percentile
from dashboard.loads.program import Plan, windows
from dashboard.loads.requests import Request, v2_binary, v2_grpc, v2_json
from tests.support.certificates import Authority
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import ServerProcess

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HELD_S = 0.3
SMALL, LARGE = np.ones((1, 4), np.float32), np.ones((1, 1 << 18), np.float32)
ENCODINGS = {"JSON": v2_json, "binary": v2_binary, "gRPC": v2_grpc}
Serve = Callable[[socket.socket], None]


def test_a_percentile_is_the_smallest_value_that_covers_its_share() -> None:
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) != percentile([], 50)  # NaN


def test_an_outcome_counts_only_successful_requests() -> None:
    found = outcome([0.002, 0.001, 0.004], seconds=2.0, failures=5)
    assert (found.requests, found.failures, found.per_second, found.p50_ms) == (3, 5, 1.5, 2.0)


def test_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    times = list(itertools.takewhile(lambda moment: moment < 20, moments(1000)))
    assert times == sorted(times)
    assert len(times) == pytest.approx(20_000, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(mean, rel=0.1)
    assert times[:100] == list(itertools.islice(moments(1000), 100))
    assert times[:100] != list(itertools.islice(moments(1000, seed=1), 100))


@pytest.fixture
def serving() -> Iterator[Callable[[Serve], str]]:
    """Listen on a port, and call `serve` with each connection on a thread of its own. Return the address."""
    listeners: list[socket.socket] = []

    def start(serve: Serve) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_served, args=(connection,), daemon=True).start()

        def _served(connection: socket.socket) -> None:
            with connection, contextlib.suppress(ConnectionError):
                serve(connection)

        threading.Thread(target=accept, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _answering(answer: bytes, *, pieces: int = 1) -> Serve:
    def serve(connection: socket.socket) -> None:
        while connection.recv(65536):
            for start in range(0, len(answer), -(-len(answer) // pieces)):
                connection.sendall(answer[start : start + -(-len(answer) // pieces)])

    return serve


def test_a_request_that_waits_for_a_connection_is_late_from_when_it_was_due(
    serving: Callable[[Serve], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, opens = threading.Event(), threading.Event()

    def stalling(connection: socket.socket) -> None:
        while connection.recv(65536):
            asked.set()
            opens.wait()
            connection.sendall(ANSWER)

    threading.Thread(target=lambda: (asked.wait(), time.sleep(HELD_S), opens.set()), daemon=True).start()
    monkeypatch.setattr(Poisson, "FIRST_CONNECTIONS", 1)
    monkeypatch.setattr(Poisson, "MOST_CONNECTIONS", 1)
    found = load.opened(Target(serving(stalling)), [Request("/", b"{}")], per_second=200, seconds=HELD_S / 2)
    assert found.failures == 0
    assert found.requests == len(list(itertools.takewhile(lambda moment: moment < HELD_S / 2, moments(200))))
    # Counted from when they were sent, all but the first would be answered immediately.
    assert found.p50_ms > HELD_S / 3 * 1000


@pytest.mark.parametrize("pieces", [1, 3, 40])
def test_an_answer_is_read_in_any_pieces(serving: Callable[[Serve], str], pieces: int) -> None:
    found = load.closed(Target(serving(_answering(ANSWER, pieces=pieces))), [Request("/", b"{}")], 2, 0.2)
    assert found.requests > 0
    assert found.failures == 0


def test_a_chunked_answer_is_read_to_its_end(serving: Callable[[Serve], str]) -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    found = load.closed(Target(serving(_answering(chunked))), [Request("/", b"{}")], 2, 0.2)
    assert found.requests > 0
    assert found.failures == 0


def test_a_failure_has_its_status_and_the_words_of_the_server(serving: Callable[[Serve], str]) -> None:
    refused = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 17\r\n\r\n{"error": "full"}'
    found = load.closed(Target(serving(_answering(refused))), [Request("/", b"{}")], 1, 0.2)
    assert found.requests == 0
    assert found.reasons == {"503 Service Unavailable: full": found.failures}
    assert found.failures > 0


def test_a_connection_that_the_server_closes_fails_its_request_and_is_replaced(serving: Callable[[Serve], str]) -> None:
    def once(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(ANSWER)
        connection.recv(65536)

    found = load.closed(Target(serving(once)), [Request("/", b"{}")], 1, 0.3)
    assert found.requests > 1
    assert found.reasons == {CLOSED: found.failures}


def test_requests_are_sent_in_turn(serving: Callable[[Serve], str]) -> None:
    paths: list[bytes] = []

    def noting(connection: socket.socket) -> None:
        while data := connection.recv(65536):
            paths.append(data.split(b" ")[1])
            connection.sendall(ANSWER)

    load.closed(Target(serving(noting)), [Request(f"/{number}", b"{}") for number in range(3)], 1, 0.5)
    assert len(paths) > 3
    assert paths == [b"/%d" % (at % 3) for at in range(len(paths))]


def test_a_request_that_is_never_answered_fails_after_the_end(
    serving: Callable[[Serve], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PATIENCE_S", 0.2)
    found = load.opened(Target(serving(lambda connection: _read(connection))), [Request("/", b"{}")], 100, 0.1)
    assert found.requests == 0
    assert found.failures == len(list(itertools.takewhile(lambda moment: moment < 0.1, moments(100))))


def _read(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def test_windows_follow_one_another_without_losing_a_request(serving: Callable[[Serve], str]) -> None:
    answered = itertools.count()

    def counting(connection: socket.socket) -> None:
        while connection.recv(65536):
            next(answered)
            connection.sendall(ANSWER)

    with load.load(Target(serving(counting)), [Request("/", b"{}")], Closed(3)) as running:
        parts = [running.window(0.3) for _ in range(3)]
        rest = running.finish()
    assert all(part.requests > 0 for part in parts)
    assert sum(part.requests for part in [*parts, rest]) == next(answered)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("loads")
    onnx_identity(root / "models", "identity")
    authority = Authority(root / "keys")
    files = authority.sign("server")
    flags = ["--grpc-use-ssl=true", f"--grpc-server-cert={files.cert}", f"--grpc-server-key={files.key}"]
    with ServerProcess(root / "models") as plain, ServerProcess(root / "models", *flags) as secure:
        plain.addresses["secure"] = secure.grpc
        plain.addresses["authority"] = str(authority.cert)
        yield plain


@pytest.mark.parametrize("tensor", [SMALL, LARGE], ids=["small", "1MB"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_reaches_the_server(server: ServerProcess, encoding: str, tensor: np.ndarray) -> None:
    request = ENCODINGS[encoding]("identity", {"INPUT0": tensor})
    target = Target(server.grpc if request.http2 else server.http)
    before = _executions(server)
    with load.load(target, [request], Closed(4)) as running:
        running.window(0.5, keep=True)
        found = running.finish()
    assert found.reasons == {}
    assert found.requests == _executions(server) - before


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_server_s_error_is_the_reason(server: ServerProcess, encoding: str) -> None:
    request = ENCODINGS[encoding]("absent", {"INPUT0": SMALL})
    found = load.closed(Target(server.grpc if request.http2 else server.http), [request], 1, 0.2)
    [reason] = found.reasons
    assert "absent" in reason
    assert found.requests == 0


def test_a_load_of_grpc_over_tls(server: ServerProcess) -> None:
    plan = Plan(
        server.addresses["secure"],
        [v2_grpc("identity", {"INPUT0": LARGE})],
        [2],
        certificates=server.addresses["authority"],
        tls=True,
        warmup_s=0.5,
        window_s=0.5,
        spread=10.0,
    )
    found = [window.outcome for window in windows(plan)]
    assert all(one.requests > 0 for one in found)
    assert [one.reasons for one in found] == [{}] * 4


def _executions(server: ServerProcess) -> int:
    _, answer = server.get("/v2/models/identity/stats")
    return int(answer["model_stats"][0]["inference_stats"]["success"]["count"])
