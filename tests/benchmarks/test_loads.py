"""The output of wrk and h2load is read as they mean it."""

import pytest

from benchmarks.loads.closed_loop import parse_h2load, parse_wrk


def test_wrk_is_read_in_milliseconds_and_without_its_failures() -> None:
    found = parse_wrk("Running 2s test\nRESULT [1000, 2000000, 10, 500.000000, 900.000000, 1500.000000]\n")
    assert (found.requests, found.seconds, found.failures) == (990, 2.0, 10)
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == (0.5, 0.9, 1.5)
    with pytest.raises(ValueError, match="unable to connect"):
        parse_wrk("unable to connect to 127.0.0.1:1")


def test_h2load_counts_a_request_of_another_status_as_failed() -> None:
    found = parse_h2load("finished in 500.00ms, 6 req/s", ["1 200 1000", "2 200 3000", "3 503 50"])
    assert (found.requests, found.failures, found.seconds, found.p99_ms) == (2, 1, 0.5, 3.0)
