"""`slipway.traffic`: read, written, validated, and taken in place."""

import json
from pathlib import Path

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config
from repository.config.reload_rule import effect
from repository.config.traffic import (
    Guardrail,
    Keep,
    Remote,
    Shadow,
    Sticky,
    TrafficPolicy,
    as_json,
    policy_of,
    set_traffic,
    traffic_of,
    unserved_candidate,
)
from repository.config.validation import validate
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json, JsonObject

PLAIN: JsonObject = {"rollout": "r-1", "candidate": 4, "weight": 5}
THERE: JsonObject = {"url": "http://elsewhere:8000", "model": "m"}

DEEP: Json = "$x"
for _ in range(60):
    DEEP = [DEEP]


def config(traffic: object = None, **aliases: int) -> ModelConfig:
    found = ModelConfig(name="m", backend="onnxruntime")
    if traffic is not None:
        found.parameters["slipway.traffic"].string_value = json.dumps(traffic)
    if aliases:
        found.parameters["slipway.aliases"].string_value = json.dumps(aliases)
    return found


def problems(found: ModelConfig) -> list[str]:
    return [problem.message for problem in validate(found, name="m", complete=False)]


def test_a_policy_is_read_as_it_was_written() -> None:
    policy = TrafficPolicy(
        rollout="r-7f3c",
        candidate=Remote("http://b:8000/x", "json", "other", "2", 3.5, {"rows": "$INPUT0"}, {"OUTPUT0": "result"}),
        weight=12.5,
        sticky=Sticky("header", "x-user"),
        shadow=Shadow(10, 0.5, 0.25, 3, Keep(5, 1000, 0.5)),
        guardrails=(Guardrail("errors", margin=0.2), Guardrail("latency", quantile=0.5, ratio=2.0)),
        min_samples=10,
        window_s=60,
        alpha=0.01,
    )
    found = config()
    assert traffic_of(found) is None
    set_traffic(found, policy)
    assert problems(found) == []
    assert traffic_of(found) == policy
    set_traffic(found, None)
    assert "slipway.traffic" not in found.parameters


def test_what_a_policy_says_by_default_is_not_written() -> None:
    private: JsonObject = PLAIN | {"shadow": {"share": 10, "keep": False}, "sticky": {"id": True}}
    for value in (PLAIN, private, PLAIN | {"guardrails": [{"metric": "errors"}]}, PLAIN | {"stable": THERE}):
        assert as_json(policy_of(value)) == value
    assert policy_of(PLAIN | {"sticky": {"header": "X-User"}}).sticky == Sticky("header", "x-user")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ([1], "expected an object such as"),
        ({"weigth": 5}, "expected rollout, candidate, stable, weight,"),
        ({"rollout": None}, "'rollout' to be a name of 1 to 64 characters"),
        ({"rollout": "R 1"}, "'rollout' to be a name of 1 to 64 characters"),
        ({"candidate": 0}, "'candidate' to be the number of a version or"),
        ({"candidate": True}, "'candidate' to be the number of a version or"),
        ({"candidate": 3}, "'candidate' is version 3, which the alias 'default' means"),
        ({"candidate": {"url": "elsewhere:8000"}}, "'candidate': expected 'url' to be a URL such as"),
        ({"candidate": {"url": "http://me:secret@elsewhere"}}, "without user, query and fragment"),
        ({"candidate": {"url": "http://elsewhere:99999"}}, "to be a URL such as"),
        ({"candidate": {"model": "m"}}, "'candidate': expected 'url' in it"),
        ({"candidate": THERE | {"protocol": "v3"}}, "'protocol' to be one of v2, v2-grpc, torchserve, json"),
        ({"candidate": THERE | {"protocol": "json"}}, "'candidate': protocol \"json\" needs 'request' and"),
        ({"candidate": THERE | {"response": {"a": "b"}}}, "'candidate': 'response' needs protocol \"json\""),
        ({"candidate": THERE | {"protocol": "torchserve", "response": {"a": "b"}}}, "and 'response', or neither"),
        ({"candidate": THERE | {"timeout_s": 0}}, "'timeout_s' to be a number above 0"),
        ({"candidate": THERE, "stable": THERE}, "are the same model of another server"),
        ({"stable": 3}, "'stable' to be"),
        ({"weight": 101}, "'weight' to be a number from 0 to 100, not 101"),
        ({"weight": "5"}, "'weight' to be a number"),
        ({"weight": float("nan")}, "'weight' to be a number"),
        ({"sticky": {"header": "a b"}}, "with the name of an HTTP header"),
        ({"sticky": {"id": True, "header": "a"}}, "'sticky' to be"),
        ({"sticky": {"cookie": "a"}}, "'sticky' to be"),
        ({"shadow": {"share": 10, "keep": True}}, "'keep' to be false or"),
        ({"shadow": {"share": 10, "keep": {"bytes": -1}}}, "'shadow.keep': expected 'bytes' to be a whole number"),
        ({"shadow": {}}, "'shadow': expected 'share' in it"),
        ({"guardrails": {"metric": "errors"}}, "'guardrails' to be a list of at most 20"),
        ({"guardrails": [{"metric": "cost"}]}, "'guardrails[0]': expected 'metric' to be one of errors, latency"),
        ({"guardrails": [{"margin": 1}]}, "'guardrails[0]': expected 'metric' in it"),
        ({"guardrails": [{"metric": "errors", "ratio": 2}]}, "'guardrails[0]': expected metric, margin, not 'ratio'"),
        ({"guardrails": [{"metric": "disagreement"}]}, "give 'shadow' with a 'share'"),
        ({"guardrails": [{"metric": "prometheus"}]}, "expected either 'name', a metric of this server, or 'url'"),
        ({"guardrails": [{"metric": "prometheus", "url": "http://p", "stable": "q"}]}, "one for 'candidate'"),
        ({"min_samples": 1.5}, "'min_samples' to be a whole number"),
        ({"alpha": 0}, "'alpha' to be a number above 0"),
        ({"sticky": {"parameter": "\ud800"}}, "without half of a surrogate pair"),
        ({"guardrails": [{"metric": "prometheus", "name": "a\0"}]}, "without the character NUL"),
        ({"candidate": THERE | {"protocol": "json", "request": DEEP, "response": {"y": "y"}}}, "50 levels"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_in_one_sentence(change: JsonObject, said: str) -> None:
    found = problems(config(PLAIN | change if isinstance(change, dict) else change, default=3))
    assert len(found) == 1
    assert said in found[0]


def test_a_candidate_that_does_not_serve_or_answers_already_is_refused() -> None:
    assert unserved_candidate(config(PLAIN, default=3), [3, 4]) == ""
    assert unserved_candidate(config(PLAIN | {"candidate": THERE}), [3]) == ""
    assert "does not serve (it serves 3)" in unserved_candidate(config(PLAIN, default=3), [3])
    assert "let the alias 'default' name the stable version" in unserved_candidate(config(PLAIN), [3, 4])
    assert unserved_candidate(config(PLAIN | {"stable": THERE}), [3, 4]) == ""


def test_another_weight_is_taken_in_place() -> None:
    assert effect(config(PLAIN), config(PLAIN | {"weight": 25})) == "in_place"
    assert effect(config(PLAIN), config()) == "in_place"


def test_no_version_may_set_a_policy_in_its_overlay(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1/slipway.pbtxt").write_text('parameters { key: "slipway.traffic" value { string_value: "{}" } }')
    with pytest.raises(InvalidConfig, match="belongs to the whole model"):
        model_config.read(folder, 1)
