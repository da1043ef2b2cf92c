"""The next move of a deployment follows from what the servers report."""

from typing import Any

import pytest

from dashboard.deployments.order import AWAY_S, PATIENCE_S, Move, StepFacts, in_order, next_move


def steps(*rows: tuple[str, str, Any]) -> list[StepFacts]:
    return [StepFacts(pk, f"s{pk}", zone, state, **more) for pk, (zone, state, more) in enumerate(rows)]


WAITS, CHANGES, SERVES = "waiting", "changing", {"serves": True}


@pytest.mark.parametrize(
    ("rows", "at_once", "move"),
    [
        ([("a", WAITS, {}), ("a", WAITS, {})], 1, Move(begin=[0])),
        ([("a", WAITS, {}), ("a", WAITS, {}), ("a", WAITS, {})], 2, Move(begin=[0, 1])),
        # Never two zones at once.
        ([("a", WAITS, {}), ("b", WAITS, {}), ("a", WAITS, {})], 3, Move(begin=[0])),
        ([], 1, Move(stop="no server is left")),
        # A group ends before the next one begins.
        ([("a", CHANGES, SERVES), ("a", CHANGES, {}), ("a", WAITS, {})], 2, Move(done=[0])),
        ([("a", CHANGES, SERVES), ("a", WAITS, {})], 1, Move(done=[0], begin=[1])),
        ([("a", "done", SERVES), ("a", CHANGES, SERVES)], 1, Move(done=[1], over=True)),
        # A server that has changed and serves no more changes again: the next one waits for it.
        ([("a", "done", {}), ("a", WAITS, {})], 1, Move(again=[0])),
        ([("a", "done", {"away_s": 1.0}), ("a", WAITS, {})], 1, Move()),
        ([("a", "done", SERVES), ("a", WAITS, {"away_s": 1.0}), ("a", WAITS, {})], 2, Move()),
        # The first that fails stops it.
        ([("a", CHANGES, {"error": "no"}), ("a", WAITS, {})], 1, Move(stop="server s0 failed: no", failed=0)),
        ([("a", CHANGES, {"away_s": AWAY_S + 1})], 1, Move(stop="server s0 does not answer", failed=0)),
        ([("a", "done", {"away_s": AWAY_S + 1}), ("a", WAITS, {})], 1, Move(stop="server s0 does not answer")),
        ([("a", WAITS, {"away_s": AWAY_S + 1})], 1, Move(stop="server s0 does not answer")),
        # An error of the time before it was reached is no failure.
        ([("a", WAITS, {"error": "no"})], 1, Move(begin=[0])),
    ],
)
def test_the_next_move(rows: list[tuple[str, str, Any]], at_once: int, move: Move) -> None:
    assert next_move(steps(*rows), at_once) == move


def test_a_server_that_says_nothing_stops_it_in_the_end() -> None:
    assert next_move(steps(("a", CHANGES, {"since_s": PATIENCE_S - 1})), 1) == Move()
    assert (
        "has not served the release for 30 min" in next_move(steps(("a", CHANGES, {"since_s": PATIENCE_S + 1})), 1).stop
    )


def test_servers_are_ordered_by_zone_and_name() -> None:
    assert in_order([("b", "x"), ("a", "z"), ("a", "y"), ("", "w")]) == [3, 2, 1, 0]
