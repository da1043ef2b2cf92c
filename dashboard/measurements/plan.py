"""The plan of a measurement: its defaults and limits."""

import math
from collections.abc import Mapping
from typing import cast

from dashboard.models.measurement import MeasurementPlan
from dashboard.shared.exceptions import Invalid

OWN, RUNNING = "own", "running"
CLOSED, OPEN = "closed", "open"
JSON, BINARY, GRPC = "json", "binary", "grpc"
SIGNATURE, GOLDEN, EXAMPLES, TRAFFIC = "signature", "golden", "examples", "traffic"

WHERE = {OWN: "A server of its own", RUNNING: "The running server"}
LOOPS = {CLOSED: "Closed: clients that wait for their answers", OPEN: "Open: requests a second, at random times"}
ENCODINGS = {JSON: "HTTP, JSON", BINARY: "HTTP, binary", GRPC: "gRPC"}
INPUTS = {
    SIGNATURE: "Made from the signature",
    GOLDEN: "Golden requests",
    EXAMPLES: "All examples",
    TRAFFIC: "Examples kept from traffic",
}
_CHOICES = {"where": WHERE, "loop": LOOPS, "encoding": ENCODINGS, "inputs": INPUTS}

DEFAULTS = MeasurementPlan(
    where=OWN,
    loop=CLOSED,
    loads=[1.0, 4.0, 16.0],
    encoding=BINARY,
    inputs=SIGNATURE,
    rows=1,
    warmup_s=1.0,
    window_s=2.0,
    least_windows=3,
    most_windows=10,
    variation=0.05,
    most_cpu=0.5,
    most_p99_growth=0.5,
    most_pending=64,
)
MOST_LOADS = 20
MOST_CLIENTS = 512
MOST_PER_SECOND = 100_000.0
# Field -> its smallest and its largest value.
BOUNDS: dict[str, tuple[float, float]] = {
    "rows": (1, 4096),
    "warmup_s": (0.1, 60),
    "window_s": (0.1, 60),
    "least_windows": (2, 50),
    "most_windows": (2, 50),
    "variation": (0.0, 1.0),
    "most_cpu": (0.01, 1.0),
    "most_p99_growth": (0.0, 100.0),
    "most_pending": (1, 1_000_000),
}
_WHOLE = ("rows", "least_windows", "most_windows", "most_pending")


def plan_of(given: Mapping[str, object]) -> MeasurementPlan:
    """Return a plan with the defaults for missing fields. Raises Invalid, at the field, if a value is not allowed."""
    unknown = next((name for name in given if name not in DEFAULTS), None)
    if unknown is not None:
        raise Invalid(f"a plan has no field '{unknown[:80]}'; expected {', '.join(DEFAULTS)}")
    values: dict[str, object] = {**DEFAULTS, **given}
    for name, choices in _CHOICES.items():
        if values[name] not in list(choices):
            raise Invalid.at(name, f"expected '{name}' to be {', '.join(choices)}")
    for name, (least, most) in BOUNDS.items():
        values[name] = _number(name, values[name], least, most)
    values["loads"] = _loads(values["loads"], values["loop"] == OPEN)
    plan = cast(MeasurementPlan, values)
    if plan["least_windows"] > plan["most_windows"]:
        raise Invalid.at("most_windows", f"expected at least {plan['least_windows']} windows, as 'least_windows' says")
    return plan


def _number(name: str, value: object, least: float, most: float) -> float | int:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    whole = name in _WHOLE
    if not least <= number <= most or (whole and number != int(number)):
        raise Invalid.at(
            name, f"expected '{name}' as a {'whole ' if whole else ''}number from {least:.10g} to {most:.10g}"
        )
    return int(number) if whole else number


def _loads(value: object, is_open: bool) -> list[float]:
    given = value if isinstance(value, list) else []
    if not 1 <= len(given) <= MOST_LOADS:
        raise Invalid.at("loads", f"expected 1 to {MOST_LOADS} loads")
    most, least = (MOST_PER_SECOND, 0.1) if is_open else (MOST_CLIENTS, 1)
    kind = "a rate" if is_open else "a whole number of clients"
    found: list[float] = []
    for one in given:
        number = float(one) if isinstance(one, int | float) and not isinstance(one, bool) else math.nan
        if not least <= number <= most or (not is_open and number != int(number)):
            raise Invalid.at("loads", f"expected each load as {kind} from {least:.10g} to {most:.10g}")
        if number not in found:
            found.append(number)
    return found
