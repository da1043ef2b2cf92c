"""What a server tells of a rollout, whatever it has counted, is what the dashboard reads: both sides at once."""

import asyncio
import time
from typing import Any, cast

import numpy as np
import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.metrics.feed import FeedReader
from dashboard.models import Rollout as Row
from dashboard.models import RolloutFigures
from dashboard.models.rollout import TrafficReport
from dashboard.rollouts.figures import sums_of
from dashboard.rollouts.selectors import _arms, _guardrails, _shadow
from dashboard.servers.messages import HelloEvent
from repository.config.traffic import policy_of
from repository.core.comparison import Tolerance, compare
from repository.core.histogram import BOUNDS_US
from repository.core.json_types import JsonObject
from serving.core.model_identifier import ModelIdentifier
from serving.resources.request_memory import RequestMemory
from serving.traffic.breaches import Breaches
from serving.traffic.mirror import _Mirrored
from serving.traffic.rollout import Rollout, RolloutServices
from serving.traffic.stable_memory import StableMemory

GUARDRAILS: list[JsonObject] = [
    {"metric": "errors", "margin": 0.01},
    {"metric": "latency", "quantile": 0.99, "ratio": 1.5},
    {"metric": "disagreement", "limit": 0.02},
    {"metric": "prometheus", "name": "of_nobody", "ratio": 1.2},
]
POLICY: JsonObject = {
    "rollout": "r-1",
    "candidate": 2,
    "weight": 12.5,
    "shadow": {"share": 10},
    "guardrails": cast(Any, GUARDRAILS),
    "min_samples": 5,
}
counted = st.lists(
    st.tuples(st.integers(0, 2**62), st.sampled_from(["answered", "failed", "refused", "left"])), max_size=20
)
answers = st.lists(st.tuples(st.floats(), st.floats()), max_size=5)


async def report(arms: dict[str, list[tuple[int, str]]], pairs: list[tuple[float, float]], breach: bool) -> bytes:
    """The JSON of a rollout that has counted these durations in ns, and compared these numbers."""
    rollout = Rollout(
        ModelIdentifier("m"),
        policy_of(POLICY),
        RolloutServices(Breaches(None), StableMemory(None), tuple, cast(Any, None), RequestMemory),
    )
    rollout.attach(1, {1: ModelConfig(name="m")}, {})
    for arm in (rollout.stable, rollout.candidate):
        for took_ns, what in arms[arm.name]:
            arm.figures.begin()
            if what == "refused":
                arm.figures.refuse()
            elif what == "left":
                arm.figures.give_up(took_ns)
            else:
                arm.figures.count(took_ns, what == "failed")
    assert rollout.mirror is not None
    for one, other in pairs:
        found = compare({"y": np.array([one])}, {"y": np.array([other])}, Tolerance(1e-4, 1e-3), frozenset())
        rollout.mirror._count_comparison(_Mirrored({}, {}, 1000, 0), {}, 2000, found)
    rollout.tick()
    if breach and rollout.breached is None:
        rollout.breach(0, "half \ud800 of a pair, and \0")
    rollout.mirror.figures.trouble = "half \ud800 of a pair, and \0", 1.0
    try:
        return orjson.dumps(rollout.report(), option=orjson.OPT_NON_STR_KEYS)
    finally:
        rollout.close()


@settings(max_examples=60, deadline=None)
@given(counted, counted, answers, st.booleans())
@example([], [], [(1.7e308, -1.7e308)] * 3, False)
def test_every_word_of_a_server_is_understood_and_means_the_same(
    stable: list[tuple[int, str]], candidate: list[tuple[int, str]], pairs: list[tuple[float, float]], breach: bool
) -> None:
    given_to = {"stable": stable, "candidate": candidate}
    content = asyncio.run(report(given_to, pairs, breach))
    assert b"\\u0000" not in content, "PostgreSQL holds no NUL"
    word = cast(TrafficReport, orjson.loads(content))
    reader = FeedReader()
    reader.read(HelloEvent({"server_id": "s", "instance": "i", "started": time.time(), "bounds_us": [*BOUNDS_US]}))
    reader.keep_report(word)
    heard = reader.traffic["r-1"]
    plan: Any = {"guardrails": GUARDRAILS, "min_samples": 5, "steps": [{"weight": 12.5, "bake_s": 1}]}
    row = Row(name="r-1", stable=1, candidate=2, plan=plan)
    kept = RolloutFigures(report=heard)
    # Of a second process, which has counted the same.
    twice = sums_of(RolloutFigures(report=heard, earlier=cast(JsonObject, sums_of(kept))))
    assert orjson.loads(orjson.dumps(twice)) == twice, "a database takes it"
    for shown, asked in zip(_arms(row, twice), given_to.values(), strict=True):
        took = [ns for ns, what in asked if what == "answered"]
        failed = sum(what == "failed" for _, what in asked)
        assert (shown.requests, shown.errors) == (2 * (len(took) + failed), 2 * failed)
        assert (
            shown.mean_ms is None
            if not took
            else abs(shown.mean_ms - sum(took) / len(took) / 1e6) <= shown.mean_ms * 1e-9
        )
    shadow = twice["shadow"]
    assert shadow is not None
    assert _shadow(shadow, heard["shadow"]).compared == 2 * len(pairs)
    assert len(_guardrails(row, heard["guardrails"])) == len(GUARDRAILS)
    assert heard["weight"] == 0.0  # nothing takes the candidate's requests here
    assert (heard["breach"] is not None) == breach or any(one["state"] == "breached" for one in heard["guardrails"])
