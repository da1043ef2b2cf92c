"""Masks of a capture, applied to the tensors of a request before they are written. See repository.core.captures."""

import hashlib
from collections.abc import Mapping

import numpy as np

from repository.core.capture_files import Record, element_bytes
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

    def apply(self, record: Record) -> None:
        """Replace the tensors that have a mask. A tensor whose datatype does not fit its mask any more is left out."""
        for tensors, masks in ((record.inputs, self._inputs), (record.outputs, self._outputs)):
            for name in masks.keys() & tensors.keys():
                masked = self._masked(tensors[name], masks[name])
                if masked is None:
                    del tensors[name]
                else:
                    tensors[name] = masked

    def _masked(self, tensor: Tensor, mask: Mask) -> Tensor | None:
        if mask["rule"] == "drop":
            return tensor
        if mask["rule"] == "hash" and tensor.dtype.kind in "OSU":
            return self._hashed(tensor)
        if mask["rule"] == "round" and tensor.dtype.kind not in "OSUb":
            return _rounded(tensor, mask["step"])
        return None

    def _hashed(self, tensor: Tensor) -> Tensor:
        found = np.empty(tensor.shape, object)
        flat = found.reshape(-1)
        for number, element in enumerate(tensor.reshape(-1)):
            digest = hashlib.blake2b(element_bytes(element), key=self._salt, digest_size=_DIGEST_BYTES)
            flat[number] = digest.hexdigest().encode()
        return found


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
