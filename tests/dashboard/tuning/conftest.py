"""Short plans, a Python model with a fixed cost for each execution, and kept tunings without a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.models import Tuning, Upload, Version
from dashboard.tuning.parameters import Limits
from dashboard.tuning.plan import plan_of
from dashboard.tuning.space import space_of
from dashboard.uploads.publication import upload_publish
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, version_from
from tests.dashboard.measurements.conftest import measured as measured

# Only the queue delay has several values, so that few trials are enough.
SHORT = {
    "warmup_s": 0.1,
    "window_s": 0.3,
    "least_windows": 2,
    "most_windows": 2,
    "variation": 1.0,
    "rounds": 2,
    "most_instances": 1,
    "most_batch": 1,
    "most_threads": 1,
    "most_trials": 2,
    "clients": 8,
    "p99_ms": 60_000,
}
# An execution takes 50 ms, whatever the number of requests: eight clients get 20 answers a second one by one, and up to 160 in
# batches.
FIXED_COST = b"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", one.as_numpy())]) for one in inputs]
"""
FIXED_COST_CONFIG = """backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@pytest.fixture(autouse=True)
def tuning_data(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path / "data"


@pytest.fixture
def slow(inspected: Callable[..., Upload], actor: Actor, server: Any) -> Version:
    """A version of the model `slow` with a fixed cost, one instance and no batching."""
    upload = inspected({"model.py": FIXED_COST}, "slow")
    job = upload_publish(upload=upload, actor=actor, document=Document.read(FIXED_COST_CONFIG), make_live=True)
    return version_from(job)


def trial(setting: dict[str, str], figures: Any, **more: Any) -> Any:
    """Return a trial as a run would keep it."""
    return {
        "setting": setting,
        "state": "done",
        "note": "",
        "round": 0,
        "figures": figures,
        "fits": True,
        "seconds": 1.0,
        **more,
    }


@pytest.fixture
def tuned() -> Callable[..., Tuning]:
    """tuned(version, {"relu:queue_delay": "0"}, [trial(...)]): a tuning that is done."""

    def keep(version: Version, chosen: dict[str, str], trials: list[Any], config: str = CONFIG, **more: Any) -> Tuning:
        space = space_of({version.model.name: Document.read(config)}, Limits(2, 4, 16, 2))
        given: dict[str, Any] = {"state": "done", "finished_at": timezone.now(), "plan": plan_of({}), **more}
        return Tuning.objects.create(
            version=version,
            config=config,
            axes={axis.name: list(axis.values) for axis in space.axes},
            present=space.present,
            chosen={**space.present, **chosen},
            trials=[{**one, "setting": {**space.present, **one["setting"]}} for one in trials],
            **given,
        )

    return keep
