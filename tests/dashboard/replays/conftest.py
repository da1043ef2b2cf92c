"""A capture of requests to relu with its own answers, and a data folder of the test's own for the servers of replays."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from dashboard.measurements.services import document_for
from dashboard.models import Capture, Model, Replay, Version
from dashboard.models.replay import no_figures
from dashboard.releases.digest import digest_of
from dashboard.replays.services import ABSOLUTE, RELATIVE
from tests.dashboard.drift.captured import add_requests, make_capture, normal


@pytest.fixture(autouse=True)
def replay_data(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path / "data"


def relu_capture(
    model: Model, count: int, wrong: Callable[[int], bool] = lambda place: False, **wanted: Any
) -> Capture:
    """Return a capture of `count` requests to relu; the answers at the places where `wrong` is true are not relu's."""
    capture, inputs = make_capture(model, **wanted), normal(4)

    def outputs(place: int) -> dict[str, Any]:
        return {"y": np.maximum(inputs(place)["x"], 0) + np.float32(5 if wrong(place) else 0)}

    add_requests(capture, count, inputs, outputs)
    return capture


@pytest.fixture
def replayed() -> Callable[..., Replay]:
    """replayed(capture, version, differ=3): a replay that is done, without a run."""

    def keep(capture: Capture, version: Version, **figures: Any) -> Replay:
        document = document_for(version)
        return Replay.objects.create(
            capture=capture,
            version=version,
            state="done",
            finished_at=timezone.now(),
            config=document.text,
            sha256=digest_of(version, document),
            absolute=ABSOLUTE,
            relative=RELATIVE,
            clients=4,
            requests=100,
            done=100,
            figures={**no_figures(), "compared": 100, **figures},
        )

    return keep
