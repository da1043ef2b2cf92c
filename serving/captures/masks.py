"""Masks of a capture, applied to the tensors of requests before they are written. See repository.core.captures."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from repository.core.capture_files import Column, element_bytes
from repository.core.captures import Mask, Wanted
from serving.core.datatypes import Tensor

_DIGEST_BYTES = 16


class Masks:
    """The masks of one capture. dropped_inputs, dropped_outputs: the tensors of which only the shapes may be written."""

    def __init__(self, wanted: Wanted) -> None:
        self._salt = bytes.fromhex(wanted["salt"])
        self._inputs, self._outputs = wanted["inputs"], wanted["outputs"]
        self.dropped_inputs = _dropped(self._inputs)
        self.dropped_outputs = _dropped(self._outputs)

    def masked(self, column: Column, values: Any) -> Any:
        """Return the values of a tensor as they may be written: an array, or a list of texts. Return None to leave out a tensor
        whose datatype does not fit its mask any more."""
        mask = (self._inputs if column.is_input else self._outputs).get(column.name)
        if mask is None or mask["rule"] == "drop":
            return values
        if mask["rule"] == "hash" and column.is_text:
            return [self._hashed(element) for element in values]
        if mask["rule"] == "round" and not column.is_text and column.dtype.kind != "b":
            return _rounded(values, mask["step"])
        return None

    def _hashed(self, element: object) -> bytes:
        return hashlib.blake2b(element_bytes(element), key=self._salt, digest_size=_DIGEST_BYTES).hexdigest().encode()


def _rounded(tensor: Tensor, step: float) -> Tensor:
    """Return the nearest multiples of a step. Integers are rounded towards 0, to multiples of a whole step."""
    if tensor.dtype.kind in "iu":
        whole = max(1, round(step))
        if whole > np.iinfo(tensor.dtype).max:
            return np.zeros_like(tensor)
        truncated: Tensor = tensor - np.fmod(tensor, tensor.dtype.type(whole))  # towards 0: within the datatype
        return truncated
    wide = tensor.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded: Tensor = (np.round(wide / step) * step).astype(tensor.dtype)
    return rounded


def _dropped(masks: Mapping[str, Mask]) -> frozenset[str]:
    return frozenset(name for name, mask in masks.items() if mask["rule"] == "drop")
