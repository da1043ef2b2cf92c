"""Makes captures of generated traffic, in the format of the server."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import numpy as np
from django.utils import timezone
from numpy.typing import NDArray

from dashboard.models import Capture, Model
from repository.core.capture_files import Record, encoded
from repository.core.captures import file_name

Tensors = Mapping[str, NDArray[Any]]
FILE_ROWS = 500


def add_requests(
    capture: Capture,
    count: int,
    inputs: Callable[[int], Tensors],
    outputs: Callable[[int], Tensors] = lambda place: {},
    *,
    at: float = 0.0,
    version: int = 1,
    first: int = 1,
    ids: Callable[[int], str] = str,
    error: str | None = None,
) -> None:
    """Write `count` requests into a capture, one a second from `at` on. first: the number of the first request."""
    capture.folder.mkdir(parents=True, exist_ok=True)
    for begin in range(0, count, FILE_ROWS):
        places = range(begin, min(begin + FILE_ROWS, count))
        records = [
            Record(
                number=first + place,
                id=ids(first + place),
                at=at + place,
                version=version,
                arm="",
                error=error,
                latency_us=100,
                inputs=dict(inputs(place)),
                outputs=dict(outputs(place)),
            )
            for place in places
        ]
        (capture.folder / file_name(first + begin, len(records))).write_bytes(encoded(records))


def make_capture(model: Model, **wanted: Any) -> Capture:
    """Make a capture that has ended."""
    now = timezone.now()
    return Capture.objects.create(
        model=model,
        wanted={
            "model": model.name,
            "share": 1.0,
            "errors_only": False,
            "versions": [],
            "until": 0.0,
            "bytes": 1 << 30,
            "salt": "00",
            "inputs": {},
            "outputs": {},
            "stopped": False,
            **wanted,
        },
        created_at=now - timedelta(hours=1),
        ends_at=now - timedelta(minutes=1),
        keep_until=now + timedelta(days=7),
    )


def normal(columns: int, shift: float = 0.0, seed: int = 0) -> Callable[[int], Tensors]:
    """Return requests with one input x[1, columns] of normal values; the first column is shifted."""
    values = np.random.default_rng(seed).normal(size=(200_000, columns)).astype(np.float32)
    values[:, 0] += shift
    return lambda place: {"x": values[place : place + 1]}
