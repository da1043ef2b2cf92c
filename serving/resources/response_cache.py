"""The response cache keeps answers of models with `response_cache { enable: true }`, and drops the least recently used.

All models share one cache of at most the size in `--cache-config local,size=BYTES`. Source: Triton,
user_guide/response_cache.md.
"""

import hashlib
import logging
import time
from collections import OrderedDict
from itertools import count

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.datatypes import Tensor, datatype_of, serialize_bytes
from serving.core.in_flight import InFlightRequest

log = logging.getLogger(__name__)

_ENTRY_BYTES = 64  # the size of an entry without its key and its tensors
_TENSOR_BYTES = 128  # the size of a tensor's datatype, shape and array object, without its name and its elements


class ResponseCache:
    """The outputs of requests, by a digest of each request. Used on the event loop's thread only."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.too_large = 0  # the number of answers that are larger than the whole cache
        self.lookup_ns = 0
        self.insertion_ns = 0
        self.generations = count()  # a number for each model that has been loaded
        self.changes = 0  # the number of times that a model was replaced or unloaded
        self._entries: OrderedDict[bytes, tuple[dict[str, Tensor], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def models_changed(self) -> None:
        """Forget the answers of ensembles, because a step may now use another model."""
        self.changes += 1

    def get(self, key: bytes) -> dict[str, Tensor] | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return dict(entry[0])

    def put(self, key: bytes, outputs: dict[str, Tensor]) -> None:
        """Keep copies, because outputs may be views of a whole batch. Outputs larger than the cache are not kept."""
        size = _ENTRY_BYTES + len(key) + sum(len(name) + _size(output) for name, output in outputs.items())
        if size > self.size:
            self._pass_over(size)
        elif key not in self._entries:
            self._add(key, outputs, size)

    def _pass_over(self, size: int) -> None:
        self.too_large += 1
        if self.too_large.bit_count() == 1:  # log only the 1st, 2nd, 4th, ... such answer
            log.error(
                "failed to insert an answer of %d bytes into the response cache of %d (%d times): give it a larger size by "
                "--cache-config=local,size=<bytes>",
                size,
                self.size,
                self.too_large,
            )

    def _add(self, key: bytes, outputs: dict[str, Tensor], size: int) -> None:
        while self.used + size > self.size:
            _, (_, freed) = self._entries.popitem(last=False)
            self.used -= freed
            self.evictions += 1
        self._entries[key] = ({name: np.array(output) for name, output in outputs.items()}, size)
        self.used += size


class ModelCache:
    """The part of the cache for one load of a model. After a reload, the model never gets earlier answers."""

    def __init__(self, cache: ResponseCache, of_ensemble: bool = False) -> None:
        self._cache = cache
        self._of_ensemble = of_ensemble
        self._prefix = next(cache.generations).to_bytes(8, "little")
        # The key and the lookup time (ns) of each running request that was not in the cache.
        self._missed: dict[InFlightRequest, tuple[bytes, int]] = {}

    @classmethod
    def of(cls, config: ModelConfig, cache: ResponseCache | None) -> "ModelCache | None":
        """Return the part of the cache for a model, or None if there is no cache, or the configuration does not enable it."""
        if cache is None or not config.response_cache.enable:
            return None
        return cls(cache, of_ensemble=config.platform == "ensemble")

    def look_up(self, request: InFlightRequest) -> tuple[dict[str, Tensor] | None, int]:
        """Return the outputs or None, and the time of the lookup (ns). A miss is remembered until `keep` or `forget`.

        Requests of a sequence are not looked up, because an ensemble's step may use earlier requests of the sequence.
        """
        if request.sequence.id:
            return None, 0
        start = time.monotonic_ns()
        key = self._key(request)
        outputs = self._cache.get(key)
        took = time.monotonic_ns() - start
        self._cache.lookup_ns += took
        if outputs is None:
            self._missed[request] = key, took
        return outputs, took

    def keep(self, request: InFlightRequest, outputs: dict[str, Tensor]) -> int:
        """Keep the answer to a request that was looked up before. Return the time of lookup and insertion (ns); 0 if the
        request was not looked up. A request whose answer does not fit counts as a miss, as in Triton."""
        key, lookup_ns = self._missed.pop(request, (b"", 0))
        if not key:
            return 0
        start = time.monotonic_ns()
        self._cache.put(key, outputs)
        took = time.monotonic_ns() - start
        self._cache.insertion_ns += took
        return lookup_ns + took

    def forget(self, request: InFlightRequest) -> None:
        self._missed.pop(request, None)

    def _key(self, request: InFlightRequest) -> bytes:
        """Return a digest of the inputs (name, datatype, shape, content) and of the requested outputs."""
        digest = hashlib.blake2b(self._prefix, digest_size=32)
        if self._of_ensemble:
            digest.update(self._cache.changes.to_bytes(8, "little"))
        for name, array in sorted(request.inputs.items()):
            digest.update(f"{name}\0{datatype_of(array).name}\0{array.shape}\0".encode())
            flat = np.ascontiguousarray(array).reshape(-1)
            digest.update(serialize_bytes(flat) if array.dtype == np.object_ else flat.view(np.uint8).data)
        digest.update("\0".join(request.requested_outputs).encode())
        return digest.digest()


def _size(array: Tensor) -> int:
    if array.dtype != np.object_:
        return _TENSOR_BYTES + int(array.nbytes)
    return _TENSOR_BYTES + sum(len(element) + 64 for element in array.ravel())  # each object itself takes 64 bytes
