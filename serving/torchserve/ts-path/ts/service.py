"""Parts of TorchServe's service that older handlers import: a function that emits metrics, and a class for entry points."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .context import Context
from .metrics.metric import Metric

PREDICTION_METRIC = "PredictionTime"


class Service:
    """An entry point with its context. The server does not need this class. It exists for code that uses it."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any],
        entry_point: Callable[[list[dict[str, Any]], Context], Any],
        gpu: int | None,
        batch_size: int,
        limit_max_image_pixels: bool = True,
        metrics_cache: Any = None,
    ) -> None:
        from . import __version__

        self._context = Context(
            model_name, model_dir, manifest, batch_size, gpu, __version__, limit_max_image_pixels, metrics_cache
        )
        self._entry_point = entry_point

    @property
    def context(self) -> Context:
        return self._context

    def predict(self, batch: list[dict[str, Any]]) -> Any:
        """Return the entry point's answers to a batch."""
        return self._entry_point(batch, self._context)


def emit_metrics(metrics: Sequence[Metric]) -> None:
    """Write metrics to the model's log, each on its own line."""
    for metric in metrics:
        sys.stdout.write(f"[METRICS]{metric}\n")
    sys.stdout.flush()
