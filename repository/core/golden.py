"""Golden requests: requests with the outputs that a model must return, within a tolerance.

The dashboard stores golden requests and sends them with a load (`slipway.golden`). The server runs them before it switches to
the new versions. Both use this module, so that they reach the same verdict. The JSON of a golden request, with the outputs
to compare in `expected`:

    {"name": "a seven", "request": {"inputs": [TENSOR, ...]}, "expected": {"outputs": [TENSOR, ...]},
     "tolerance": {"absolute": 0.0, "relative": 0.001}, "seconds": 30}

`tolerance` and `seconds`, the longest time for the answer, are optional. With `"private": true` messages quote no element: a
client sent the request, and readers of logs and checks must not see its data. A float agrees if |answered - expected| <=
absolute + relative * |expected| (numpy's isclose). Integers have only the absolute tolerance, because class 1000 is not class
1001. Texts and booleans have no tolerance. NaN agrees with NaN.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from repository.core.errors import InvalidExample
from repository.core.json_types import Json, JsonObject
from repository.core.tensors import (
    FLOATS,
    Element,
    Tensor,
    in_json,
    is_tensor_name,
    read_tensor,
    tensor_json,
    to_binary,
)

MAX_REQUESTS = 50  # the most golden requests of one model
MAX_BYTES = 1 << 20  # the largest size of one golden request, as JSON
MAX_BYTES_TOGETHER = 8 << 20  # the largest size of all golden requests of one model
MAX_SECONDS = 600.0
_NAMED = 20  # the most outputs that a message names
_SHOWN = 60  # the most characters of an element that a message quotes


@dataclass(frozen=True, slots=True)
class Tolerance:
    absolute: float = 0.0
    relative: float = 1e-3


DEFAULT_TOLERANCE = Tolerance()
DEFAULT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ExampleRequest:
    """A checked request. outputs: the requested outputs, in the form of V2; empty for all outputs."""

    inputs: list[Tensor]
    outputs: list[Json]
    parameters: JsonObject


@dataclass(frozen=True, slots=True)
class GoldenRequest:
    """A golden request. digest: a hash, equal for equal JSON."""

    name: str
    request: ExampleRequest
    expected: list[Tensor]
    digest: str
    tolerance: Tolerance = DEFAULT_TOLERANCE
    seconds: float = DEFAULT_SECONDS
    private: bool = False


@dataclass(frozen=True, slots=True)
class OutputVerdict:
    """largest: the largest difference of two numbers; None if there are none. detail: the reason of a failure, or ""."""

    name: str
    largest: float | None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the comparison of an answer. detail: the first reason of a failure; "" if the answer passed."""

    outputs: list[OutputVerdict]

    @property
    def detail(self) -> str:
        return next((output.detail for output in self.outputs if output.detail), "")

    @property
    def passed(self) -> bool:
        return not self.detail

    @property
    def clause(self) -> str:
        """Return the reason of the failure, or the largest difference."""
        largest = max((output.largest or 0.0 for output in self.outputs), default=0.0)
        return self.detail or (f"the largest difference is {largest:.3g}" if largest else "all values are equal")


# -- read ----------------------------------------------------------------------------------------------------------------
def read_golden(text: str | bytes) -> list[GoldenRequest]:
    """Read the load parameter `slipway.golden`. Raises InvalidExample if it is malformed or too large."""
    size = len(text)
    if size > MAX_BYTES_TOGETHER + MAX_REQUESTS * 1024:
        raise InvalidExample(f"expected golden requests of at most {MAX_BYTES_TOGETHER} bytes together, got {size}")
    try:
        rows = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidExample(f"golden requests are not JSON: {error}") from None
    if not isinstance(rows, list) or len(rows) > MAX_REQUESTS:
        raise InvalidExample(f"expected golden requests as a list of at most {MAX_REQUESTS}")
    return [_read_one(row) for row in rows]


def _read_one(row: object) -> GoldenRequest:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str):
        raise InvalidExample("expected every golden request as an object with a name")
    try:
        request, expected = read_request(row.get("request")), read_expected(row.get("expected"))
        tolerance = read_tolerance(row.get("tolerance", {}))
        seconds = _read_seconds(row.get("seconds", DEFAULT_SECONDS))
        private = row.get("private", False)
        if not isinstance(private, bool):
            raise InvalidExample("expected 'private' as true or false")
        digest = hashlib.sha256(orjson.dumps(row)).hexdigest()
        return GoldenRequest(row["name"], request, expected, digest, tolerance, seconds, private)
    except InvalidExample as error:
        raise InvalidExample(f"golden request '{row['name']}': {error.message}") from None


def read_request(row: object) -> ExampleRequest:
    """Read a V2 request; drop the parameters about the form of the answer (binary data, timing)."""
    if not isinstance(row, dict):
        raise InvalidExample("expected a request as an object with 'inputs'")
    inputs = _tensors(row.get("inputs"), "inputs")
    parameters = row.get("parameters", {})
    outputs = row.get("outputs", [])
    if not isinstance(parameters, dict) or not isinstance(outputs, list):
        raise InvalidExample("expected 'parameters' as an object and 'outputs' as a list")
    kept = {
        key: _parameter(key, value)
        for key, value in parameters.items()
        if key != "binary_data_output" and not key.startswith("slipway_")
    }
    return ExampleRequest(inputs, [_read_output(output) for output in outputs], kept)


def _parameter(name: str, value: Json) -> Json:
    """Return a parameter of V2. Raises InvalidExample if a server would refuse the value, because every load would fail.

    Source: Triton docs/protocol/extension_parameters.md, extension_sequence.md, extension_schedule_policy.md.
    """
    if name.startswith("triton_"):
        raise InvalidExample(f"parameter '{name[:80]}': names that begin with 'triton_' are reserved")
    if name in ("sequence_start", "sequence_end"):
        expected, right = "true or false", isinstance(value, bool)
    elif name in ("priority", "timeout"):
        expected, right = "a whole number from 0", _is_unsigned(value)
    elif name == "sequence_id":
        expected, right = "a text or a whole number from 0", isinstance(value, str) or _is_unsigned(value)
    else:
        value = _within_64_bits(value)
        expected, right = "a text, a number or a boolean", isinstance(value, str | bool | int | float)
    if not right:
        raise InvalidExample(f"expected parameter '{name[:80]}' as {expected}")
    if "\0" in name or (isinstance(value, str) and "\0" in value):
        raise InvalidExample(f"parameter '{name[:80]}' holds the character NUL, which cannot be kept")
    return value


def _is_unsigned(value: Json) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _within_64_bits(value: Json) -> Json:
    """Return a whole number beyond 64 bits as a float, which is how a server reads it and PostgreSQL stores it."""
    if type(value) is not int or -(1 << 63) <= value < 1 << 64:
        return value
    try:
        return float(value)
    except OverflowError:
        return None


def read_expected(row: object) -> list[Tensor]:
    """Read the expected outputs: {"outputs": [TENSOR, ...]}; other members of an answer are ignored."""
    if not isinstance(row, dict):
        raise InvalidExample("expected the expected answer as an object with 'outputs'")
    return _tensors(row.get("outputs"), "outputs")


def read_tolerance(row: object) -> Tolerance:
    if not isinstance(row, dict):
        raise InvalidExample("expected the tolerance as an object with 'absolute' and 'relative'")
    numbers = [row.get(key, getattr(DEFAULT_TOLERANCE, key)) for key in ("absolute", "relative")]
    if not all(type(number) in (int, float) and math.isfinite(number) and number >= 0 for number in numbers):
        raise InvalidExample("expected tolerances as numbers from 0")
    return Tolerance(*map(float, numbers))


def _read_seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        raise InvalidExample(f"expected 'seconds' as a number over 0 and at most {MAX_SECONDS:g}")
    return float(value)


def _tensors(rows: object, key: str) -> list[Tensor]:
    if not isinstance(rows, list) or not rows:
        raise InvalidExample(f"expected '{key}' as a list of tensors, and not an empty one")
    tensors = [read_tensor(row) for row in rows]
    twice = [name for name, times in Counter(tensor.name for tensor in tensors).items() if times > 1]
    if twice:
        raise InvalidExample(f"tensor '{twice[0]}' is given twice")
    return tensors


def _read_output(output: object) -> JsonObject:
    name = output.get("name") if isinstance(output, dict) else None
    if not isinstance(output, dict) or not is_tensor_name(name):
        raise InvalidExample("expected every output that is asked for as an object with a name")
    parameters = output.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidExample("expected the 'parameters' of an output as an object")
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 32:
        raise InvalidExample(f"output '{name}': expected 'classification' as a number of classes")
    return {"name": name, "parameters": {"classification": classes}} if classes else {"name": name}


# -- written -------------------------------------------------------------------------------------------------------------
def request_json(request: ExampleRequest) -> JsonObject:
    """Return the request as JSON, from which `read_request` reads an equal request."""
    return _with_rest(request, [tensor_json(tensor) for tensor in request.inputs], request.parameters)


def request_body(request: ExampleRequest) -> tuple[bytes, bytes]:
    """Return the body to send: the JSON, and the binary data that follows it. All outputs are requested as binary data."""
    binary = [to_binary(tensor) if not in_json(tensor) else None for tensor in request.inputs]
    rows: list[Json] = [
        tensor_json(tensor) if content is None else _announced(tensor, len(content))
        for tensor, content in zip(request.inputs, binary, strict=True)
    ]
    head = _with_rest(request, rows, {**request.parameters, "binary_data_output": True})
    return orjson.dumps(head), b"".join(content for content in binary if content is not None)


def _announced(tensor: Tensor, size: int) -> JsonObject:
    head: JsonObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    return {**head, "parameters": {"binary_data_size": size}}


def _with_rest(request: ExampleRequest, inputs: Sequence[Json], parameters: JsonObject) -> JsonObject:
    row: JsonObject = {"inputs": list(inputs)}
    if request.outputs:
        row["outputs"] = request.outputs
    if parameters:
        row["parameters"] = parameters
    return row


# -- compared ------------------------------------------------------------------------------------------------------------
def compare(
    expected: Sequence[Tensor], answered: Mapping[str, Tensor], tolerance: Tolerance, *, private: bool = False
) -> Verdict:
    """Compare the outputs of an answer with the expected outputs, by name. private: quote no element in messages."""
    return Verdict([_compare_output(output, answered, tolerance, private) for output in expected])


def _compare_output(
    expected: Tensor, answered: Mapping[str, Tensor], tolerance: Tolerance, private: bool
) -> OutputVerdict:
    name = expected.name
    got = answered.get(name)
    if got is None:
        there = ", ".join(f"'{one}'" for one in islice(answered, _NAMED)) or "none"
        return OutputVerdict(name, None, f"the answer has no output '{name}'; it has {there}")
    for what, wanted, came in (
        ("datatype", expected.datatype, got.datatype),
        ("shape", str(list(expected.shape)), str(list(got.shape))),
    ):
        if wanted != came:
            return OutputVerdict(name, None, f"output '{name}' has {what} {came}, expected {wanted}")
    return _compare_elements(expected, got, tolerance, private)


def _compare_elements(expected: Tensor, got: Tensor, tolerance: Tolerance, private: bool) -> OutputVerdict:
    numbers = expected.datatype not in ("BOOL", "BYTES")
    relative = tolerance.relative if expected.datatype in FLOATS else 0.0
    largest, worst, excess, wrong = 0.0, -1, -1.0, 0
    for index, (wanted, came) in enumerate(zip(expected.elements, got.elements, strict=True)):
        if wanted == came or (wanted != wanted and came != came):
            continue
        apart = _apart(wanted, came) if numbers else math.inf
        largest = max(largest, apart)
        beyond = apart - (tolerance.absolute + relative * _size(wanted) if numbers else 0.0)
        if beyond > 0 or math.isnan(beyond):
            wrong += 1
            if beyond > excess or worst < 0:
                worst, excess = index, beyond
    detail = ""
    if wrong and private:
        detail = (
            f"output '{expected.name}': {wrong} of {len(expected.elements)} elements differ by more than is allowed"
        )
    elif wrong:
        detail = _difference(expected, got, worst, wrong, largest)
    return OutputVerdict(expected.name, largest if numbers else None, detail)


def _apart(wanted: Element, came: Element) -> float:
    assert not isinstance(wanted, bytes)
    assert not isinstance(came, bytes)
    apart = abs(came - wanted)  # exact for integers of any size
    return math.inf if apart != apart else float(apart)


def _size(wanted: Element) -> float:
    """Return the magnitude for the relative tolerance; 0 for NaN and infinities, which agree with no number."""
    return abs(wanted) if isinstance(wanted, int | float) and math.isfinite(wanted) else 0.0


def _difference(expected: Tensor, got: Tensor, worst: int, wrong: int, largest: float) -> str:
    wanted, came = _format_element(expected.elements[worst]), _format_element(got.elements[worst])
    where = f" at {_position(worst, expected.shape)}" if len(expected.elements) > 1 else ""
    first = f"output '{expected.name}' is {came}{where}, expected {wanted}"
    if expected.datatype not in ("BOOL", "BYTES") and math.isfinite(largest):
        first += f", the largest difference is {largest:.6g}"
    return f"{first}; {wrong} of {len(expected.elements)} elements differ by more than is allowed" if where else first


def _format_element(element: Element) -> str:
    if isinstance(element, bytes):
        text = repr(element.decode("utf-8", "replace"))
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{element:.6g}" if isinstance(element, float) else str(element).lower()


def _position(index: int, shape: Sequence[int]) -> list[int]:
    place: list[int] = []
    for dim in reversed(shape):
        place.insert(0, index % dim)
        index //= dim
    return place
