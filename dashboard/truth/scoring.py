"""The score of one answer beside its label, by the metric of the model.

The prediction is the only element of the output, or the index of its highest one. A single float beside the label 0 or 1 is a
probability: from 0.5 on it predicts 1. An answer with several rows has no single prediction. For accuracy, a label that is a
name of a class means that class, if the output's classes have names; any other label is an index or a number.
"""

import ast
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboard.models import TruthMetric
from dashboard.shared.choices import TruthKind
from dashboard.truth.expression import parsed, value_of


class Scorer:
    """Scores answers by a metric. names: of the output's classes, by index; [] if they have none."""

    def __init__(self, metric: TruthMetric, *, batched: bool, names: Sequence[str] = ()) -> None:
        self._kind = metric.kind
        self._batched = batched
        self._tree: ast.expr | None = parsed(metric.expression) if metric.kind == TruthKind.OWN else None
        self._indexes = {name.strip(): index for index, name in reversed(list(enumerate(names)))}

    def score(self, label: str, output: NDArray[Any] | None) -> float | None:
        """Return the score; None if the two cannot be compared. RMSE's is the squared error."""
        if output is None or not output.size or (self._batched and output.shape[0] != 1):
            return None
        if self._kind == TruthKind.ACCURACY:
            return self._agrees(label, output)
        truth, found = _number(label), _number(output.reshape(-1)[0]) if output.size == 1 else float(np.argmax(output))
        if truth is None or found is None or (output.size > 1 and self._kind != TruthKind.OWN):
            return None
        if self._tree is not None:
            return value_of(self._tree, {"label": truth, "prediction": found})
        error = abs(truth - found)
        found = error * error if self._kind == TruthKind.RMSE else error
        return found if math.isfinite(found) else None

    def _agrees(self, label: str, output: NDArray[Any]) -> float | None:
        found = output.reshape(-1)[0]
        if output.dtype == object:
            return float(found.decode(errors="replace").strip() == label) if output.size == 1 else None
        named = self._indexes.get(label)
        truth = _number(label) if named is None else float(named)
        if truth is None:
            return None
        if output.size > 1:
            return float(truth == float(np.argmax(output)))
        value = _number(found)
        if value is None:
            return None
        if output.dtype.kind == "f" and truth in (0, 1) and 0 <= value <= 1:
            return float((value >= 0.5) == bool(truth))
        return float(truth == value)


def _number(value: object) -> float | None:
    """Return a finite number; None for anything else. The words true and false are 1 and 0."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return float(value.lower() == "true")
    try:
        found = float(value)  # type: ignore[arg-type]  # a text, or an element of numpy
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None
