"""The load generator's program: it reads a `Plan` from its input and prints one line of JSON for each window."""

import base64
import json
import math
import ssl
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dashboard.loads.arrivals import Closed, Poisson
from dashboard.loads.connection import Target
from dashboard.loads.load import load
from dashboard.loads.outcome import Outcome
from dashboard.loads.requests import Request

STABLE_WINDOWS = 3  # the windows whose spread is judged, as in NVIDIA's perf_analyzer


@dataclass(frozen=True)
class Plan:
    """A sweep over `loads`: numbers of clients (a closed loop), or of requests a second (an open loop).

    warmup_s: the time before the first window, reported as window 0. A load ends when the throughput and the p95 of its last
    `STABLE_WINDOWS` windows have a coefficient of variation of at most `spread`, or after `most_windows`. `least_windows` are
    measured in any case.
    """

    address: str
    requests: Sequence[Request]
    loads: Sequence[float]
    open_loop: bool = False
    warmup_s: float = 1.0
    window_s: float = 2.0
    least_windows: int = STABLE_WINDOWS
    most_windows: int = 10
    spread: float = 0.05
    certificates: str = ""  # the path of a CA bundle; TLS is used if `tls` is true
    tls: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Window:
    """One line of the program. load: the number of clients or the rate. number: 0 for the warm-up. stable: whether the load has
    become stable by now. spread: the larger coefficient of variation of the last windows; NaN before the third."""

    load: float
    number: int
    stable: bool
    outcome: Outcome
    spread: float = math.nan


def windows(plan: Plan) -> Iterator[Window]:
    """Run the loads of a plan, one after the other. Raises OSError if the server cannot be reached."""
    context = ssl.create_default_context(cafile=plan.certificates or None) if plan.tls else None
    if context is not None:
        # HTTP/2 over TLS requires "h2" (RFC 9113, section 3.2).
        context.set_alpn_protocols(["h2" if plan.requests[0].http2 else "http/1.1"])
    target = Target(plan.address, context)
    for one in plan.loads:
        arrivals = Poisson(one, plan.seed) if plan.open_loop else Closed(int(one))
        with load(target, plan.requests, arrivals) as running:
            if plan.warmup_s:
                yield Window(one, 0, False, running.window(plan.warmup_s))
            outcomes: list[Outcome] = []
            stable = False
            while not stable and len(outcomes) < plan.most_windows:
                outcomes.append(running.window(plan.window_s))
                spread = spread_of(outcomes[-STABLE_WINDOWS:])
                stable = len(outcomes) >= plan.least_windows and spread <= plan.spread
                yield Window(one, len(outcomes), stable, outcomes[-1], spread)


def spread_of(outcomes: Sequence[Outcome]) -> float:
    """Return the larger coefficient of variation of throughput and p95.

    The result is NaN if there are fewer than `STABLE_WINDOWS` windows, or a window has no successful request.
    """
    if len(outcomes) < STABLE_WINDOWS or any(one.requests == 0 for one in outcomes):
        return math.nan
    return max(_variation([one.per_second for one in outcomes]), _variation([one.p95_ms for one in outcomes]))


def _variation(values: Sequence[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def plan_from_json(text: str) -> Plan:
    """Read a plan. The body of a request is base64."""
    fields: dict[str, Any] = json.loads(text)
    requests = [Request(**{**one, "body": base64.b64decode(one["body"])}) for one in fields.pop("requests")]
    return Plan(requests=requests, **fields)


def plan_to_json(plan: Plan) -> str:
    requests = [{**_fields(one), "body": base64.b64encode(one.body).decode()} for one in plan.requests]
    return json.dumps(
        {**{name: value for name, value in vars(plan).items() if name != "requests"}, "requests": requests}
    )


def window_to_json(window: Window) -> str:
    """Return the line of a window; NaN becomes null."""
    row = asdict(window)
    row["spread"] = _or_null(window.spread)
    row["outcome"] = {name: _or_null(value) for name, value in row["outcome"].items()}
    return json.dumps(row)


def _or_null(value: object) -> object:
    return None if isinstance(value, float) and math.isnan(value) else value


def _fields(request: Request) -> Mapping[str, Any]:
    return {"path": request.path, "headers": dict(request.headers), "http2": request.http2}
