"""A data folder of the test's own for the servers of measurements, short plans, and kept measurements without a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from dashboard.measurements.plan import DEFAULTS
from dashboard.measurements.services import document_for
from dashboard.models import Measurement, Version
from dashboard.releases.digest import digest_of

SHORT = {"warmup_s": 0.1, "window_s": 0.2, "least_windows": 2, "most_windows": 3, "variation": 1.0}


@pytest.fixture(autouse=True)
def measurement_data(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path / "data"


def load_row(load: float, per_second: float, p99_ms: float, **more: Any) -> Any:
    """Return the figures of a load, as a run would keep them."""

    def one(value: float) -> dict[str, float]:
        return {"value": value, "spread": value / 100}

    return {
        "load": load,
        "windows": 3,
        "stable": True,
        "variation": 0.01,
        "warmup": {"per_second": per_second, "p99_ms": p99_ms},
        "per_second": one(per_second),
        "mean_ms": one(p99_ms / 2),
        "p50_ms": one(p99_ms / 2),
        "p95_ms": one(p99_ms * 0.9),
        "p99_ms": one(p99_ms),
        "requests": int(per_second * 6),
        "failures": 0,
        "reasons": {},
        "split": {part: one(p99_ms / 12) for part in ("queue", "input", "compute", "output", "other", "wire")},
        "batches": [{"size": 1, "executions": 10, "input": 0.1, "compute": 1.0, "output": 0.1}],
        "cpu_cores": one(0.5),
        "memory_bytes": 1 << 20,
        "energy_j": None,
        **more,
    }


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """measured(version, [load_row(...)]): a measurement that is done."""

    def keep(version: Version, loads: list[Any], **more: Any) -> Measurement:
        given: dict[str, Any] = {"state": "done", "finished_at": timezone.now(), "plan": DEFAULTS, **more}
        document = document_for(version)
        given = {"config": document.text, "sha256": digest_of(version, document), **given}
        return Measurement.objects.create(version=version, loads=loads, **given)

    return keep
