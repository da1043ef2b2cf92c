"""The axes of a configuration, the configuration of a setting, and the settings of a version that make the same."""

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format

from dashboard.models import Tuning, Version
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.tuning.changes import difference_of, own_settings
from dashboard.tuning.parameters import PARAMETERS, Limits
from dashboard.tuning.plan import measured_plan, plan_of
from dashboard.tuning.scores import gain_of, score_of_figures
from dashboard.tuning.space import documents_of, space_of
from repository.config import model_config
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG
from tests.dashboard.measurements.conftest import load_row
from tests.dashboard.tuning.conftest import FIXED_COST_CONFIG, trial

LIMITS = Limits(cores=4, most_instances=4, most_batch=16, most_threads=2)


def axes_of(text: str, limits: Limits = LIMITS) -> dict[str, list[str]]:
    return {
        axis.name.partition(":")[2]: list(axis.values) for axis in space_of({"m": Document.read(text)}, limits).axes
    }


def test_an_onnx_model_has_every_parameter() -> None:
    assert axes_of(CONFIG) == {
        "queue_delay": ["off", "0", "500", "2000", "5000"],
        "instances": ["1", "2", "4"],
        "threads": ["0", "1", "2"],
        "max_batch_size": ["4", "8", "16"],
        "preferred_batch_size": ["none", "4", "8"],
        "inline_below_us": ["0", "100", "1000"],
    }


def test_a_python_model_has_no_threads_and_one_without_batches_has_no_batching() -> None:
    assert set(axes_of(FIXED_COST_CONFIG)) == {"queue_delay", "instances", "max_batch_size", "preferred_batch_size"}
    assert set(axes_of('backend: "python"')) == {"instances"}
    assert axes_of('backend: "python"', Limits(4, 1, 1, 1)) == {}


def test_the_present_value_is_among_the_values_whatever_it_is() -> None:
    text = CONFIG + "dynamic_batching { max_queue_delay_microseconds: 700 preferred_batch_size: [ 2, 6 ] }\n"
    space = space_of({"m": Document.read(text + "instance_group { count: 3 }\n")}, LIMITS)
    assert space.present["m:queue_delay"] == "700"
    assert space.present["m:preferred_batch_size"] == "2, 6"
    assert space.present["m:instances"] == "3"
    assert all(space.present[axis.name] in axis.values for axis in space.axes)


def test_every_value_of_every_parameter_can_be_written_and_read_again() -> None:
    present = Document.read(CONFIG + "dynamic_batching { }\n")
    for parameter in PARAMETERS:
        for value in parameter.values(present.message, LIMITS):
            changed = present.edited(lambda config, parameter=parameter, value=value: parameter.write(config, value))
            assert parameter.read(changed.message) == value, parameter.name
            assert changed.problems("m") == [], (parameter.name, value)


def test_a_setting_is_a_small_difference_of_the_text(db: None, relu: Version, tuned: Callable[..., Tuning]) -> None:
    found = tuned(relu, {"relu:queue_delay": "500", "relu:instances": "1"}, [])
    assert documents_of(found, found.present)["relu"].text == CONFIG
    text = documents_of(found, found.chosen)["relu"].text
    assert text.startswith("# The widest ReLU of the house.")
    assert "max_queue_delay_microseconds: 500" in text
    added = [line for line in difference_of(found).splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert 2 <= len(added) <= 10


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "dynamic_batching { max_queue_delay_microseconds: 500 preferred_batch_size: 4 }"),
        (
            "dynamic_batching { max_queue_delay_microseconds: 500 }",
            "dynamic_batching { max_queue_delay_microseconds: 7 }",
        ),
        ("instance_group { count: 1 }", "instance_group { count: 4 }"),
        ("", 'parameters { key: "intra_op_thread_count" value { string_value: "2" } }'),
    ],
)
def test_the_settings_of_a_version_make_the_same_configuration(before: str, after: str) -> None:
    base, wanted = (model_config.parse(f"{CONFIG}{text}\n") for text in (before, after))
    own = own_settings(base, wanted)
    model_config.merge_overlay(base, json_format.ParseDict(json_format.MessageToDict(own), type(own)()))
    assert base == wanted


def test_what_takes_a_setting_away_cannot_be_the_settings_of_a_version() -> None:
    base, wanted = model_config.parse(CONFIG + "dynamic_batching { }\n"), model_config.parse(CONFIG)
    with pytest.raises(Conflict, match="takes a setting away"):
        own_settings(base, wanted)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"goal": "speed"}, "throughput, latency, memory"),
        ({"p99_ms": 0}, "expected 'p99_ms' as a number from"),
        ({"most_instances": 1.5}, "expected 'most_instances' as a whole number"),
        ({"clients": 0}, "expected 'clients' as a whole number of clients"),
        ({"per_second": "many"}, "expected 'per_second' as a rate"),
        ({"least_windows": 5, "most_windows": 3}, "at least 5 windows"),
        ({"moon": 1}, "a plan has no field 'moon'"),
    ],
)
def test_a_wrong_plan_is_refused_at_its_field(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        plan_of(wrong)


def test_each_goal_has_its_load() -> None:
    assert (measured_plan(plan_of({"clients": 4}))["loop"], measured_plan(plan_of({"clients": 4}))["loads"]) == (
        "closed",
        [4.0],
    )
    plan = measured_plan(plan_of({"goal": "latency", "per_second": 50}))
    assert (plan["loop"], plan["loads"]) == ("open", [50.0])


def test_a_score_follows_the_goal_and_its_limits() -> None:
    def score(figures: Any, **plan: Any) -> Any:
        return score_of_figures(figures, plan_of(plan))

    quick, late = load_row(16, 500, 10.0), load_row(16, 900, 200.0)
    assert score(late, p99_ms=300).above(score(quick, p99_ms=300))
    assert score(quick, p99_ms=100).above(score(late, p99_ms=100))
    assert score(quick, goal="latency").above(score(late, goal="latency"))
    assert not score(quick, goal="latency", per_second=1000).fits
    small = load_row(16, 500, 10.0, memory_bytes=1 << 10)
    assert score(small, goal="memory").above(score(quick, goal="memory"))
    assert not score(load_row(16, 500, 10.0, failures=900)).fits


def test_the_gain_has_the_spread_between_the_pairs() -> None:
    plan = plan_of({})
    before = [trial({}, load_row(16, rate, 9.0)) for rate in (100, 101, 99)]
    gain = gain_of(before, [trial({}, load_row(16, rate, 9.0)) for rate in (200, 204, 196)], plan)
    assert gain is not None
    assert gain["better"]
    assert gain["change"] == pytest.approx(1.0, abs=0.01)
    assert gain["spread"] is not None
    assert 0 < gain["spread"] < 0.1
    lucky = gain_of(before, [trial({}, load_row(16, rate, 9.0)) for rate in (90, 130, 99)], plan)
    assert lucky is not None
    assert not lucky["better"]
    assert gain_of(before, [*before[:2], trial({}, None, state="failed")], plan) is None
