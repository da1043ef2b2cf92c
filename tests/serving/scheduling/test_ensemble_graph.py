"""Reading an ensemble's configuration takes time in proportion to its steps."""

import sys
from collections.abc import Callable

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.configuration.ensemble_check import check_ensemble
from serving.scheduling.ensemble_graph import EnsembleGraph
from tests.support.pipelines import X, Y, step

MODEL = """max_batch_size: 8 input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
    output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }"""


def _chain(count: int) -> ModelConfig:
    """The last step first."""
    names = ["X", *(f"tensor{number}" for number in range(count - 1)), "Y"]
    steps = [step("double", {"INPUT0": names[number]}, {"OUTPUT0": names[number + 1]}) for number in range(count)]
    config = ModelConfig()
    tensors = f"input [{X}] output [{Y}]"
    text_format.Parse(f"max_batch_size: 8 {tensors} ensemble_scheduling {{ {''.join(reversed(steps))} }}", config)
    return config


def _lines(work: Callable[[ModelConfig], object], steps: int) -> int:
    """How many lines of Python it runs for an ensemble of so many steps."""
    config, lines = _chain(steps), 0

    def count(*_: object) -> Callable[..., object]:
        nonlocal lines
        lines += 1
        return count

    sys.settrace(count)
    try:
        work(config)
    finally:
        sys.settrace(None)
    return lines


def _checked(config: ModelConfig) -> None:
    model = text_format.Parse(MODEL, ModelConfig())
    check_ensemble(config, lambda name, version: model)


@pytest.mark.parametrize("work", [EnsembleGraph, _checked])
def test_four_times_the_steps_are_four_times_the_work(work: Callable[[ModelConfig], object]) -> None:
    assert _lines(work, 80) < 6 * _lines(work, 20)


def test_steps_that_depend_on_a_step_are_found_through_others() -> None:
    graph = EnsembleGraph(_chain(4))
    assert [graph.after(index) for index in range(4)] == [[], [0], [0, 1], [0, 1, 2]]
