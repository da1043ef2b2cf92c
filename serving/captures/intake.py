"""Chooses requests for captures, and copies them into queues; all on the event loop's thread.

Chooser     the captures of one model: which of the next requests they choose
    Intake      the queue of one capture; an observer of the requests that it chose

A request that no capture chooses costs a lookup and a subtraction. A chosen one costs a copy of its tensors' bytes.
"""

import math
import random
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from numpy import ndarray

from repository.core.capture_files import SIZE, Layout, Row
from repository.core.captures import Wanted
from serving.captures.counters import CHOSEN, FULL, LARGE, UNFIT
from serving.core.datatypes import Tensor
from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest, QuietObserver
from serving.core.response import Answer, InferenceResponse
from serving.core.rollout_arm import arm_of
from serving.usage.accounts import Use

MAX_REQUEST_BYTES = 4 << 20  # of the tensors of one request and its answer
MAX_WAITING_BYTES = 16 << 20  # of the requests of one capture that wait to be written
MAX_WAITING = 20_000
MAX_TEXT = 500  # characters of a request's id or error that are kept
MAX_LAYOUTS = 1024  # layouts that are remembered
MAX_REFUSED = 64  # sets of names and datatypes that no model has answered: clients may invent any number of them
MAX_NAMES = 4096  # characters of the names in such a set
_NEVER = 1 << 62
_NOTHING: Mapping[str, Tensor] = {}


class Intake(QuietObserver):
    """values: the counters of the capture. Another thread takes the rows from `waiting`, and adds their bytes to `taken_bytes`.

    wanted, takes: what to keep, and whether to keep anything; set by the other thread. dropped_...: the tensors whose values a
    mask drops; they are not copied.
    """

    def __init__(
        self,
        wanted: Wanted,
        values: "memoryview[int]",
        dropped_inputs: frozenset[str] = frozenset(),
        dropped_outputs: frozenset[str] = frozenset(),
    ) -> None:
        self.wanted = wanted
        self.takes = True
        self.waiting: deque[Row] = deque()
        self.given_bytes = self.taken_bytes = 0  # each has one writer
        self._values = values
        self._dropped_inputs = dropped_inputs
        self._dropped_outputs = dropped_outputs
        self._layouts: dict[tuple[Any, ...], Layout] = {}
        self._answered: set[frozenset[Any]] = set()  # the sets of columns of requests that were answered
        self._refused: set[frozenset[Any]] = set()  # and of others

    @property
    def waiting_bytes(self) -> int:
        return self.given_bytes - self.taken_bytes

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        """Copy a request and its last answer into the queue, or count it as dropped."""
        wanted = self.wanted
        failed = isinstance(answer, ServingError)
        at = time.time()
        if not final or not self.takes or (wanted["errors_only"] and not failed) or at >= wanted["until"]:
            return
        accounts = wanted.get("accounts")
        if accounts and not _is_of(request, accounts):
            return
        arm = arm_of(request) if len(request.observers) > 1 else None
        asked = request.asked
        outputs: Mapping[str, Tensor] = _NOTHING
        fits = request.stream is None and not asked.output_targets
        if isinstance(answer, InferenceResponse):
            version = answer.model_version
            outputs = answer.outputs
            fits = fits and answer.in_shared_memory is None
        else:
            version = _number(arm.version) if arm is not None else 0
        if wanted["versions"] and version not in wanted["versions"]:
            return
        values = self._values
        number = values[CHOSEN] + 1
        values[CHOSEN] = number
        if not fits:
            values[UNFIT] += 1
            return
        layout = self._layout(asked.inputs, outputs, failed)
        if layout is None:
            values[UNFIT] += 1
            return
        size = layout.size
        if size > MAX_REQUEST_BYTES:
            values[LARGE] += 1
            return
        waiting = self.waiting
        if len(waiting) >= MAX_WAITING or self.given_bytes - self.taken_bytes + size > MAX_WAITING_BYTES:
            values[FULL] += 1
            return
        if layout.plain:  # copies, because the memory of tensors may be used again after the answer
            copies: list[Any] = [tensor.tobytes() for tensor in asked.inputs.values()]
            copies += [tensor.tobytes() for tensor in outputs.values()]
        else:
            try:
                copies, size = layout.copied([*asked.inputs.values(), *outputs.values()])
            except TypeError:  # an object that is no text, from a Python model
                values[UNFIT] += 1
                return
            if size > MAX_REQUEST_BYTES:
                values[LARGE] += 1
                return
            if self.waiting_bytes + size > MAX_WAITING_BYTES:
                values[FULL] += 1
                return
        self.given_bytes += size
        waiting.append(
            (
                number,
                asked.id[:MAX_TEXT],
                at,
                version,
                arm.arm if arm is not None else "",
                answer.message[:MAX_TEXT] if isinstance(answer, ServingError) else None,
                max(0, time.monotonic_ns() - request.arrival_ns) // 1000,
                layout,
                copies,
                size,
            )
        )

    def take(self, most_rows: int, most_bytes: int) -> list[Row]:
        """Take rows from the queue, on the other thread. Their bytes count as waiting until it adds them to `taken_bytes`."""
        rows: list[Row] = []
        size = 0
        while self.waiting and len(rows) < most_rows and size < most_bytes:
            row = self.waiting.popleft()
            rows.append(row)
            size += row[SIZE]
        return rows

    def _layout(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], failed: bool) -> Layout | None:
        """Return the layout of tensors; None if the capture cannot keep them."""
        key: list[object] = [failed]
        for name, tensor in inputs.items():
            if not isinstance(tensor, ndarray):
                return None
            key += (name, tensor.dtype, tensor.shape)
        key.append(None)
        for name, tensor in outputs.items():
            if not isinstance(tensor, ndarray):
                return None
            key += (name, tensor.dtype, tensor.shape)
        layout_key = tuple(key)
        found = self._layouts.get(layout_key)
        if found is None:
            found = Layout(inputs, outputs, self._dropped_inputs, self._dropped_outputs)
            if not self._fits(frozenset(found.columns), failed):
                return None
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[layout_key] = found
        return found

    def _fits(self, columns: frozenset[Any], failed: bool) -> bool:
        """Return whether a file may have these columns. Each set of names and datatypes may need a file of its own."""
        if not failed:
            self._answered.add(columns)
        elif columns not in self._refused:
            if len(self._refused) >= MAX_REFUSED or sum(len(column.name) for column in columns) > MAX_NAMES:
                return any(columns <= known for known in self._answered)
            self._refused.add(columns)
        return True


class Chooser:
    """Chooses for each capture of a model its share of the requests, independently at random.

    It counts down to the next request that any capture chooses."""

    def __init__(self, intakes: list[Intake]) -> None:
        self.intakes = intakes
        self._gaps = [_gap(intake.wanted["share"]) for intake in intakes]
        self._step = self._left = min(self._gaps)

    def chooses(self) -> bool:
        """Return whether a capture chooses the next request."""
        self._left -= 1
        return self._left <= 0

    def observe(self, request: InFlightRequest) -> None:
        """Let the captures that chose this request observe it."""
        for place, intake in enumerate(self.intakes):
            gap = self._gaps[place] - self._step
            if gap <= 0:
                request.observe(intake)
                gap = _gap(intake.wanted["share"])
            self._gaps[place] = gap
        self._step = self._left = min(self._gaps)


def _gap(share: float) -> int:
    """Return the number of requests from one that is chosen to the next: geometric, as if each had been decided on its own."""
    if share >= 1:
        return 1
    if share <= 0:
        return _NEVER
    return min(_NEVER, 1 + int(math.log(1.0 - random.random()) / math.log1p(-share)))


def _is_of(request: InFlightRequest, accounts: list[str]) -> bool:
    """Return whether a request has a token of one of these names, or of one of these people."""
    for observer in request.observers:
        if isinstance(observer, Use):
            holder = observer.account.holder
            return holder.token in accounts or (holder.person != "" and holder.person in accounts)
    return False


def _number(version: str) -> int:
    return int(version) if version.isdecimal() and len(version) < 19 else 0
