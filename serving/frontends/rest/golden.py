"""The load parameter `slipway.golden`: examples that what is loaded has to answer, as a JSON text.

[{"name": "a cat", "request": {"inputs": [...]}, "expected": {"outputs": [{"name", "datatype", "shape", "data"}]},
  "tolerance": {"absolute": 0.0, "relative": 0.001}, "seconds": 30}]

`request` is a V2 inference request; see serving.frontends.rest.example_tensors for what its tensors may hold. `tolerance` and
`seconds` may be left out.
"""

import math
from collections.abc import Callable

from serving.core.errors import ServingError, invalid
from serving.core.request import InferenceRequest
from serving.core.tensor_comparison import USUAL, Tolerance
from serving.frontends.rest.example_tensors import load_example, read_tensors
from serving.frontends.rest.json_body import JsonObject
from serving.models.golden_requests import SECONDS, GoldenRequest

PARAMETER = "slipway.golden"
MAX_REQUESTS = 1000
MAX_SECONDS = 600.0
_FIELDS = {"name", "request", "expected", "tolerance", "seconds"}


def read_golden(text: str, model: str) -> list[GoldenRequest]:
    """Return the requests for that model. INVALID_ARG for what is wrong with one, with its name."""
    try:
        value = load_example(text)
    except ServingError as error:
        raise invalid(f"load parameter '{PARAMETER}': {error.message}") from None
    if not isinstance(value, list):
        raise invalid(f"expected load parameter '{PARAMETER}' to be a list of golden requests")
    if len(value) > MAX_REQUESTS:
        raise invalid(f"expected at most {MAX_REQUESTS} golden requests, got {len(value)}")
    return [_read(item, number, model) for number, item in enumerate(value)]


def _read(item: object, number: int, model: str) -> GoldenRequest:
    name = item.get("name") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(name, str) or not name:
        raise invalid(f"golden request {number}: expected an object with a 'name'")
    try:
        return _checked(name, item, model)
    except ServingError as error:
        raise invalid(f"golden request '{name[:200]}': {error.message}") from None


def _checked(name: str, item: JsonObject, model: str) -> GoldenRequest:
    unknown = sorted(item.keys() - _FIELDS)
    if unknown:
        raise invalid(f"expected {', '.join(sorted(_FIELDS))}, not '{unknown[0][:80]}'")
    header, inputs = read_tensors(_object("request", item))
    if header.rules:
        raise invalid("its outputs are compared whole: leave out classification and shared memory")
    outputs = _object("expected", item).get("outputs")
    if not isinstance(outputs, list) or not outputs:
        raise invalid("expected 'expected' to have 'outputs', at least one of them")
    try:
        expected = read_tensors({"inputs": outputs})[1]
    except ServingError as error:  # they are read as inputs are
        raise invalid(f"expected outputs: {error.message.replace('input', 'output', 1)}") from None
    asked = InferenceRequest(
        model,
        inputs,
        id=header.id,
        requested_outputs=header.requested,
        parameters=header.parameters,
        priority=header.priority,
        timeout_us=header.timeout_us,
        sequence=header.sequence,
    )
    seconds = _number("seconds", item.get("seconds", SECONDS), lambda value: 0 < value <= MAX_SECONDS)
    return GoldenRequest(name[:200], asked, expected, _tolerance(item), seconds)


def _tolerance(item: JsonObject) -> Tolerance:
    if "tolerance" not in item:
        return USUAL
    given = _object("tolerance", item)
    unknown = sorted(given.keys() - set(USUAL._fields))
    if unknown:
        raise invalid(f"expected 'tolerance' to have 'absolute' and 'relative', not '{unknown[0][:80]}'")
    values = USUAL._asdict() | given
    return Tolerance(*(_number(name, values[name], lambda value: value >= 0) for name in USUAL._fields))


def _object(name: str, item: JsonObject) -> JsonObject:
    value = item.get(name)
    if not isinstance(value, dict):
        raise invalid(f"expected '{name}' to be an object")
    return value


def _number(name: str, value: object, fits: Callable[[float], bool]) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not fits(value):
        bound = f"over 0 and at most {MAX_SECONDS:g}" if name == "seconds" else "of at least 0"
        raise invalid(f"expected '{name}' to be a number {bound}, not {str(value)[:80]!r}")
    return float(value)
