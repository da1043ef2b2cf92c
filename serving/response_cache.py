"""The response cache: answers of models that ask for it (`response_cache { enable: true }`), least recently used out first.

One cache for all models, bounded in bytes by `--cache-config local,size=BYTES`. Source: Triton, user_guide/response_cache.md.
"""

import hashlib
from collections import OrderedDict
from itertools import count

import numpy as np

from serving.datatypes import datatype_of, serialize_bytes
from serving.request import InferenceRequest, Tensor

_generations = count()


class ResponseCache:
    """Outputs by request. Used on the event loop's thread only."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.lookup_ns = 0
        self.insertion_ns = 0
        self._entries: OrderedDict[bytes, tuple[dict[str, Tensor], int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> dict[str, Tensor] | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self._entries.move_to_end(key)
        self.hits += 1
        return dict(entry[0])

    def put(self, key: bytes, outputs: dict[str, Tensor]) -> None:
        """Keep copies: outputs may be views of a whole batch. What is larger than the cache is not kept."""
        size = len(key) + sum(_size(output) for output in outputs.values())
        if size > self.size or key in self._entries:
            return
        while self.used + size > self.size:
            _, (_, freed) = self._entries.popitem(last=False)
            self.used -= freed
            self.evictions += 1
        self._entries[key] = ({name: np.array(output) for name, output in outputs.items()}, size)
        self.used += size


class ModelCache:
    """One loaded model's part of the cache: a reloaded model never sees the answers of the one before it."""

    def __init__(self, cache: ResponseCache) -> None:
        self._cache = cache
        self._prefix = next(_generations).to_bytes(8, "little")

    def key(self, request: InferenceRequest) -> bytes:
        """A digest of the inputs (name, datatype, shape, content) and of the outputs asked for."""
        digest = hashlib.blake2b(self._prefix, digest_size=32)
        for name, array in sorted(request.inputs.items()):
            digest.update(f"{name}\0{datatype_of(array).name}\0{array.shape}\0".encode())
            flat = np.ascontiguousarray(array).reshape(-1)
            digest.update(serialize_bytes(flat) if array.dtype == np.object_ else flat.view(np.uint8).data)
        digest.update("\0".join(request.requested).encode())
        return digest.digest()

    def get(self, key: bytes) -> dict[str, Tensor] | None:
        return self._cache.get(key)

    def put(self, key: bytes, outputs: dict[str, Tensor]) -> None:
        self._cache.put(key, outputs)

    def spent(self, lookup_ns: int = 0, insertion_ns: int = 0) -> None:
        """How long the cache kept a request: the digest of its inputs counts in."""
        self._cache.lookup_ns += lookup_ns
        self._cache.insertion_ns += insertion_ns


def _size(array: Tensor) -> int:
    if array.dtype != np.object_:
        return int(array.nbytes)
    return sum(len(element) + 64 for element in array.ravel())  # the objects themselves take room too
