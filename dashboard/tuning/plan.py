"""The plan of a tuning: its defaults and limits, and the plan of one trial."""

import math
from collections.abc import Mapping
from typing import cast

from dashboard.measurements import plan as measuring
from dashboard.models.measurement import MeasurementPlan
from dashboard.models.tuning import TuningPlan
from dashboard.shared.exceptions import Invalid

THROUGHPUT, LATENCY, MEMORY = "throughput", "latency", "memory"
GOALS = {
    THROUGHPUT: "Most requests a second, with the p99 under a limit",
    LATENCY: "Least p99 at a rate",
    MEMORY: "Least memory, at a rate and with the p99 under a limit",
}
LIMITED = (THROUGHPUT, MEMORY)  # the goals with a limit on the p99
AT_A_RATE = (LATENCY, MEMORY)  # the goals that are measured in an open loop

DEFAULTS = TuningPlan(
    goal=THROUGHPUT,
    p99_ms=100.0,
    per_second=100.0,
    clients=16,
    encoding=measuring.BINARY,
    inputs=measuring.SIGNATURE,
    rows=1,
    warmup_s=1.0,
    window_s=1.0,
    least_windows=3,
    most_windows=8,
    variation=0.05,
    rounds=3,
    most_instances=8,
    most_batch=64,
    most_threads=16,
    most_trials=24,
    most_minutes=15.0,
)
# Field -> its smallest and its largest value. The other fields are those of a measurement.
_BOUNDS: dict[str, tuple[float, float]] = {
    "p99_ms": (0.01, 3_600_000),
    "rounds": (2, 10),
    "most_instances": (1, 64),
    "most_batch": (1, 4096),
    "most_threads": (1, 256),
    "most_trials": (1, 500),
    "most_minutes": (0.1, 240),
}
_MEASURED = ("encoding", "inputs", "rows", "warmup_s", "window_s", "least_windows", "most_windows", "variation")
_WHOLE = ("rounds", "most_instances", "most_batch", "most_threads", "most_trials")


def plan_of(given: Mapping[str, object]) -> TuningPlan:
    """Return a plan with the defaults for missing fields. Raises Invalid, at the field, if a value is not allowed."""
    unknown = next((name for name in given if name not in DEFAULTS), None)
    if unknown is not None:
        raise Invalid(f"a plan has no field '{unknown[:80]}'; expected {', '.join(DEFAULTS)}")
    values: dict[str, object] = {**DEFAULTS, **given}
    if values["goal"] not in list(GOALS):
        raise Invalid.at("goal", f"expected 'goal' to be {', '.join(GOALS)}")
    for name, (least, most) in _BOUNDS.items():
        values[name] = _number(name, values[name], least, most)
    for name, loop in (("clients", measuring.CLOSED), ("per_second", measuring.OPEN)):
        try:
            values[name] = measuring.plan_of({"loop": loop, "loads": [values[name]]})["loads"][0]
        except Invalid as error:
            raise Invalid.at(name, error.message.replace("each load", f"'{name}'")) from None
    plan = cast(TuningPlan, values)
    plan.update(cast(TuningPlan, {name: measured_plan(plan)[name] for name in _MEASURED}))  # type: ignore[literal-required]
    plan["clients"] = int(plan["clients"])
    return plan


def measured_plan(plan: TuningPlan) -> MeasurementPlan:
    """Return the plan of one trial. Raises Invalid, at the field, if a value is not allowed."""
    is_open = plan["goal"] in AT_A_RATE
    given: dict[str, object] = {name: plan[name] for name in _MEASURED}  # type: ignore[literal-required]
    load = plan["per_second"] if is_open else float(plan["clients"])
    return measuring.plan_of({**given, "loop": measuring.OPEN if is_open else measuring.CLOSED, "loads": [load]})


def _number(name: str, value: object, least: float, most: float) -> float | int:
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    whole = name in _WHOLE
    if not least <= number <= most or (whole and number != int(number)):
        raise Invalid.at(
            name, f"expected '{name}' as a {'whole ' if whole else ''}number from {least:.10g} to {most:.10g}"
        )
    return int(number) if whole else number
