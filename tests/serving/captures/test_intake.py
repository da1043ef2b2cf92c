"""What a capture's intake takes and drops, without a server: every kind of request, and the shares of several captures."""

import time
from typing import Any

import numpy as np
import pytest

from repository.core.captures import Wanted
from serving.captures import intake as module
from serving.captures.counters import CHOSEN, FULL, LARGE, UNFIT
from serving.captures.intake import Chooser, Intake
from serving.core.errors import invalid
from serving.core.in_flight import InFlightRequest, ResponseStream
from serving.core.output_target import OutputRule, OutputTarget
from serving.core.response import Answer, InferenceResponse
from tests.serving.requests import in_flight

ONE = np.ones((1, 2), np.float32)


def intake(**fields: Any) -> Intake:
    wanted: Any = {"share": 1.0, "errors_only": False, "versions": [], "until": time.time() + 60} | fields
    return Intake(Wanted(**wanted), memoryview(bytearray(64)).cast("Q"), frozenset(["dropped"]))


def give(to: Intake, inputs: dict[str, Any], answer: Answer | None = None, **fields: Any) -> InFlightRequest:
    request = in_flight("m", inputs, **fields)
    request.observe(to)
    request.respond(InferenceResponse("m", 1, "", {"y": ONE}) if answer is None else answer)
    return request


def counted(of: Intake) -> tuple[int, ...]:
    return tuple([of._values[place] for place in (CHOSEN, FULL, LARGE, UNFIT)])


def test_tensors_are_copied_and_those_that_a_mask_drops_are_not() -> None:
    own = intake()
    tensor, texts = np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2], np.array([[b"ab", "\u00e4"]], object)
    give(own, {"x": tensor, "t": texts, "dropped": np.ones(1000), "none": np.zeros((0, 4), np.float32)}, id="r" * 999)
    tensor[...], texts[...] = 9, b"changed"
    [row] = own.take(10, 1 << 20)
    assert row[8] == [b"\0\0\2\0\3\0\5\0", [b"ab", "\u00e4"], b"", b"", ONE.tobytes()]
    assert row[1] == "r" * module.MAX_TEXT
    assert own.waiting_bytes == row[9] == 8 + (4 + 2 + 4 + 1) + 8
    assert counted(own) == (1, 0, 0, 0)


def test_what_has_no_plain_tensors_is_unfit_and_counted_once() -> None:
    own = intake()
    decoupled = in_flight("m", {"x": ONE})
    decoupled.stream = ResponseStream(0)
    decoupled.observe(own)
    for final in (False, False, True):
        decoupled.respond(InferenceResponse("m", 1, "", {"y": ONE}), final)
    give(own, {"x": ONE}, output_targets={"y": OutputTarget(OutputRule(classes=1))})
    in_memory = InferenceResponse("m", 1, "", {"y": ONE})
    in_memory.in_shared_memory = {}
    give(own, {"x": ONE}, in_memory)
    give(own, {"x": object()})  # a double of a tensor on a GPU
    give(own, {"x": ONE}, InferenceResponse("m", 1, "", {"y": object()}))  # type: ignore[dict-item]
    give(own, {"x": np.array([1, None], object)})
    assert counted(own) == (6, 0, 0, 6)
    assert not own.waiting


def test_requests_of_sequences_and_refused_ones_are_kept() -> None:
    own = intake()
    give(own, {"x": ONE}, sequence_id=7, sequence_start=True)
    give(own, {"x": ONE}, invalid("no" * 999))
    request = in_flight("m", {})
    request.observe(own)
    request.refuse(invalid("no inputs"))
    errors = [row[5] for row in own.take(10, 1 << 20)]
    assert errors == [None, ("no" * 999)[: module.MAX_TEXT], "no inputs"]


@pytest.mark.parametrize(
    "large", [np.zeros(module.MAX_REQUEST_BYTES), np.array([b"x" * module.MAX_REQUEST_BYTES], object)]
)
def test_very_large_tensors_and_texts_are_not_copied(large: Any) -> None:
    own = intake()
    give(own, {"x": large})
    assert counted(own) == (1, 0, 1, 0)


def test_texts_count_towards_the_bytes_that_may_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 300)
    own = intake()
    for _ in range(3):
        give(own, {"t": np.array([b"x" * 100], object)})
    assert counted(own) == (3, 1, 0, 0)


def test_names_that_clients_invent_are_bounded_and_real_ones_stay() -> None:
    own = intake()
    give(own, {"x": ONE, "z": ONE})
    for number in range(module.MAX_REFUSED + 50):
        give(own, {f"invented-{number}": ONE}, invalid("no such input"))
    give(own, {"n" * (module.MAX_NAMES + 1): ONE}, invalid("no such input"))
    assert counted(own) == (module.MAX_REFUSED + 52, 0, 0, 51)
    give(own, {"z": ONE}, invalid("an input is missing"))
    give(own, {"x": ONE, "other": ONE})
    assert counted(own)[3] == 51


def test_layouts_that_are_forgotten_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LAYOUTS", 3)
    own = intake()
    for rows in [*range(8), *range(8)]:
        give(own, {"x": np.ones((rows, 2), np.float32)})
    assert [row[7].shapes[0] for row in own.take(99, 1 << 20)] == [(rows, 2) for rows in [*range(8), *range(8)]]


def test_each_capture_of_a_model_gets_its_share_independently() -> None:
    shares = (0.02, 0.5, 0.0, 1.0)
    captures = [intake(share=share) for share in shares]
    chooser = Chooser(captures)
    chosen = []
    for _ in range(20_000):
        request = in_flight("m", {})
        if chooser.chooses():
            chooser.observe(request)
        chosen.append([capture in request.observers for capture in captures])
    found = np.array(chosen)
    for share, mean in zip(shares, found.mean(axis=0), strict=True):
        assert abs(mean - share) <= 6 * (share * (1 - share) / len(chosen)) ** 0.5
    both = float((found[:, 0] & found[:, 1]).mean())
    assert abs(both - 0.01) < 6 * (0.01 / len(chosen)) ** 0.5
    after = float(found[1:, 1][found[:-1, 1]].mean())
    assert abs(after - 0.5) < 0.06, "a chosen request says nothing about the next"
