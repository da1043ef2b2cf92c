"""No request fails while its model is reloaded and its instance count changed; `make soak` runs the long version."""

import pytest

from benchmarks.soak_reload import Outcome, soak


def check(outcome: Outcome, requests: int, reloads: int, instance_changes: int) -> None:
    assert not outcome.failures, outcome.describe()
    assert not outcome.problems, outcome.problems
    assert outcome.answered >= requests
    assert (outcome.reloads, outcome.instance_changes) == (reloads, instance_changes)
    assert len(outcome.factors) == reloads + 1, "every model that was published answered"


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_no_request_fails_while_a_model_is_reloaded_and_its_instances_change(tmp_path, backend):
    check(soak(tmp_path, requests=5000, clients=16, reloads=5, instance_changes=4, backend=backend), 5000, 5, 4)


@pytest.mark.soak
def test_no_request_of_200_000_fails_over_50_reloads_and_20_changes_of_the_instance_count(tmp_path):
    check(soak(tmp_path, requests=200_000, clients=32, reloads=50, instance_changes=20), 200_000, 50, 20)


@pytest.mark.soak
def test_no_request_of_50_000_to_a_python_model_fails_over_20_reloads(tmp_path):
    outcome = soak(tmp_path, requests=50_000, clients=32, reloads=20, instance_changes=10, backend="python")
    check(outcome, 50_000, 20, 10)
