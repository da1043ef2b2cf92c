"""Requests and answers are the same on the other side of the link, and the kinds that a worker remembers are bounded."""

import os

import ml_dtypes
import numpy as np
import pytest

from serving.core.datatypes import DATATYPES, Tensor
from serving.core.errors import (
    Code,
    Exhausted,
    NotYet,
    PermissionDenied,
    ServingError,
    Unauthenticated,
    invalid,
)
from serving.core.in_flight import InFlightRequest
from serving.core.output_target import OutputRule, OutputTarget
from serving.core.request import NO_SEQUENCE, InferenceRequest, SequencePosition
from serving.workers.link import requests
from serving.workers.link.answers import discard_outputs, read_error, read_outputs, write_error, write_outputs
from serving.workers.link.requests import RequestDetails, RequestReader, RequestWriter
from serving.workers.link.shared_area import AreaReader, AreaWriter, create_area
from serving.workers.link.tensors import INLINE

MB = 1 << 20
NOTHING = {
    "parameters": {},
    "priority": 0,
    "timeout_us": 0,
    "sequence": NO_SEQUENCE,
    "classes": {},
    "peer": None,
    "headers": {},
    "received": None,
}


class Link:
    """Both ends of one direction in one process."""

    def __init__(self, size: int = 16 * MB) -> None:
        descriptor = create_area(size)
        self.out, self.into = AreaWriter(descriptor), AreaReader(descriptor)
        os.close(descriptor)
        self.writer, self.reader = RequestWriter(self.out), RequestReader(self.into)

    def request(self, asked: InferenceRequest, **details: object) -> InferenceRequest:
        """The request as it arrives."""
        made = RequestDetails(**{**NOTHING, **details})  # type: ignore[arg-type]
        written = self.writer.write(1, InFlightRequest.unanswered(asked), "http", made)
        _, kind, identifier, _, data, plain = written
        known = self.reader.kinds.get(kind) or self.reader.define(*kind)  # type: ignore[call-overload, misc]
        return self.reader.read(known, identifier, data, plain)  # type: ignore[arg-type]

    def outputs(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return read_outputs(write_outputs(outputs, self.out), self.into)


@pytest.fixture
def link() -> Link:
    return Link()


def tensors() -> list[Tensor]:
    found: list[Tensor] = [np.ones((2, 3), row.dtype) for row in DATATYPES.values() if row.itemsize]
    found += [np.zeros(shape, np.int16) for shape in ((), (0,), (3, 0, 2), (1, 1, 1, 1))]
    found += [np.arange(size, dtype=np.float64) for size in (INLINE // 8, INLINE // 8 + 1, 200_000)]
    found += [np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(), np.array([3, 1], ml_dtypes.bfloat16)]
    found += [np.array(text, object) for text in ([b""], [[b"a", b"bc"]], [b"x" * INLINE], [])]
    return found


@pytest.mark.parametrize("tensor", tensors(), ids=lambda one: f"{one.dtype}-{one.shape}")
def test_tensors_are_the_same_on_the_other_side(link: Link, tensor: Tensor) -> None:
    beside = np.arange(5, dtype=np.uint8)
    for found in (
        link.request(InferenceRequest("m", {"A": beside, "B": tensor, "C": beside})).inputs,
        link.outputs({"A": beside, "B": tensor, "C": beside}),
    ):
        assert list(found) == ["A", "B", "C"]
        assert (found["B"].dtype, found["B"].shape) == (tensor.dtype, tensor.shape)
        assert (found["B"] == tensor).all()
        assert (found["C"] == beside).all()
        assert found["B"].flags.aligned


def test_everything_that_was_asked_arrives(link: Link) -> None:
    asked = InferenceRequest("m", {}, "3", "id-\udc80", ("OUT",))
    found = link.request(
        asked,
        parameters={"a": 1, "b": "two", "c": True, "d": 0.5},
        priority=2,
        timeout_us=3_000_000_000,
        sequence=SequencePosition("s", True, False),
        classes={"OUT": 3},
    )
    assert (found.model_name, found.model_version, found.id, found.requested_outputs) == ("m", "3", asked.id, ("OUT",))
    assert dict(found.parameters) == {"a": 1, "b": "two", "c": True, "d": 0.5}
    assert (found.priority, found.timeout_us, found.sequence) == (2, 3_000_000_000, SequencePosition("s", True, False))
    assert found.output_targets == {"OUT": OutputTarget(OutputRule(3))}


def test_a_full_area_makes_tensors_travel_in_the_message() -> None:
    link = Link(size=INLINE)
    tensor = np.arange(MB, dtype=np.int32)
    assert np.array_equal(link.outputs({"A": tensor})["A"], tensor)
    assert np.array_equal(link.request(InferenceRequest("m", {"A": tensor})).inputs["A"], tensor)


def test_more_kinds_than_are_remembered_forget_the_oldest_alone(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_KINDS", 4)
    for rounds in (range(1, 9), range(8, 0, -1), range(1, 9)):
        for columns in rounds:
            tensor = np.full((1, columns), columns, np.int8)
            assert np.array_equal(link.request(InferenceRequest("m", {"A": tensor})).inputs["A"], tensor)
    first = link.writer.write(
        1, InFlightRequest.unanswered(InferenceRequest("m", {"A": np.ones((1, 8), np.int8)})), "http", None
    )
    assert type(first[1]) is int, "a kind that was met lately is known by its number"


def test_kinds_that_are_too_long_are_not_remembered(link: Link) -> None:
    for number in (1, 2, 1):
        name = f"{number}" * requests.KEPT_SIZE
        asked = InferenceRequest(f"m{number}", {name: np.full(number, number, np.int8)})
        arrived = link.request(asked)
        assert (arrived.model_name, arrived.inputs[name].tolist()) == (f"m{number}", [number] * number)
        link.request(InferenceRequest("m", {"A": np.zeros(1, np.int8)}))
    assert sorted(link.reader.kinds) == [0, requests.MAX_KINDS]


def test_places_of_abandoned_outputs_come_back(link: Link) -> None:
    written = write_outputs({"A": np.zeros(MB), "B": np.zeros(1)}, link.out)
    discard_outputs(written, link.into)
    (place,) = link.into.take_freed()
    link.out.give_back(place)
    assert link.out.place(16 * MB) == 0


@pytest.mark.parametrize(
    "error",
    [
        *[ServingError(code, "why") for code in Code],
        *[kind("why") for kind in (Exhausted, NotYet, PermissionDenied, Unauthenticated)],
        invalid("ü\udc80"),
    ],
)
def test_errors_keep_kind_code_and_words(error: ServingError) -> None:
    found = read_error(write_error(error))
    assert (type(found), found.code, found.message) == (type(error), error.code, error.message)
