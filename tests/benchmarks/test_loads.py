"""What the loads say of a server is right: percentiles, the programs' own words, and time lost before a request was sent."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from benchmarks.loads import open_loop
from benchmarks.loads.closed_loop import parse_h2load, parse_wrk
from benchmarks.loads.outcome import outcome, percentile
from benchmarks.loads.requests import Request

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HELD_S = 0.3


def test_a_percentile_is_the_smallest_value_that_covers_its_share() -> None:
    values = list(range(1, 101))
    assert [percentile(values, percent) for percent in (50, 95, 99)] == [50, 95, 99]
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) != percentile([], 50)  # NaN


def test_an_outcome_counts_only_what_succeeded() -> None:
    found = outcome([0.002, 0.001, 0.004], seconds=2.0, failures=5)
    assert (found.requests, found.failures, found.per_second, found.p50_ms) == (3, 5, 1.5, 2.0)


def test_wrk_is_read_in_milliseconds_and_without_its_failures() -> None:
    found = parse_wrk("Running 2s test\nRESULT [1000, 2000000, 10, 500.000000, 900.000000, 1500.000000]\n")
    assert (found.requests, found.seconds, found.failures) == (990, 2.0, 10)
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (0.5, 0.9, 1.5)
    with pytest.raises(ValueError, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1")


def test_h2load_counts_a_request_of_another_status_as_failed() -> None:
    found = parse_h2load("finished in 500.00ms, 6 req/s", ["1 200 1000", "2 200 3000", "3 503 50"])
    assert (found.requests, found.failures, found.seconds, found.p99_ms) == (2, 1, 0.5, 3.0)


def test_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    moments = open_loop.schedule(1000, 20)
    assert moments == sorted(moments)
    assert len(moments) == pytest.approx(20_000, rel=0.05)
    gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 == pytest.approx(mean, rel=0.1)
    assert moments == open_loop.schedule(1000, 20)


@pytest.fixture
def stalling() -> Iterator[str]:
    """The address of a server that answers nobody for `HELD_S` after the first request, then everybody at once."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked, opens = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            while connection.recv(65536):
                asked.set()
                opens.wait()
                connection.sendall(ANSWER)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    threading.Thread(target=lambda: (asked.wait(), time.sleep(HELD_S), opens.set()), daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_request_that_waits_for_a_connection_is_late_from_when_it_was_due(
    stalling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop, "FIRST_CONNECTIONS", 1)
    monkeypatch.setattr(open_loop, "MOST_CONNECTIONS", 1)
    found = open_loop.measure(stalling, Request("/", b"{}"), per_second=200, seconds=HELD_S / 2)
    assert found.failures == 0
    assert found.requests == len(open_loop.schedule(200, HELD_S / 2))
    # Counted from when they were sent, all but the first would be answered at once.
    assert found.p50_ms > HELD_S / 3 * 1000
