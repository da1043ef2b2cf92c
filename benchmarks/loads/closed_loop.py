"""A closed loop: each of N clients sends its next request after the answer to the last one.

The clients are wrk (HTTP/1.1) and h2load (gRPC). With one thread each, they use less CPU time than any client in Python.
"""

import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dashboard.loads.outcome import PERCENTILES, Outcome, outcome
from dashboard.loads.requests import Request

NEEDS = {"wrk": "wrk", "h2load": "nghttp2-client"}  # program -> package of Debian
_LUA = """\
local file = io.open("body", "rb")
wrk.method = "POST"
wrk.body = file:read("*all")
%s
function done(summary, latency)
  local errors = summary.errors
  print(string.format("RESULT [%%d, %%d, %%d, %%f, %%f, %%f]", summary.requests, summary.duration,
    errors.connect + errors.read + errors.write + errors.status, %s))
end
"""


def missing() -> list[str]:
    """Return the missing Debian packages."""
    return [package for program, package in NEEDS.items() if shutil.which(program) is None]


def measure(address: str, request: Request, clients: int, seconds: int) -> Outcome:
    """Load "host:port" with the same request from `clients` connections."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "body").write_bytes(request.body)
        return (_h2load if request.http2 else _wrk)(Path(folder), address, request, clients, seconds)


def _wrk(folder: Path, address: str, request: Request, clients: int, seconds: int) -> Outcome:
    headers = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items())
    latencies = ", ".join(f"latency:percentile({percent})" for percent in PERCENTILES)
    (folder / "post.lua").write_text(_LUA % (headers, latencies))
    url = f"http://{address}{request.path}"
    text = _run(["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "-s", "post.lua", url], folder, seconds)
    return parse_wrk(text)


def parse_wrk(text: str) -> Outcome:
    """Read the output of the script for wrk: requests, microseconds, failures, and the percentiles in microseconds."""
    found = re.search(r"RESULT (\[.*\])", text)
    if found is None:
        raise ValueError(f"wrk printed no result:\n{text}")
    requests, duration, failures, *latencies = json.loads(found[1].replace("-nan", "nan").replace("nan", "NaN"))
    p50, p95, p99 = (latency / 1e3 if requests else math.nan for latency in latencies)
    return Outcome(max(requests - failures, 0), duration / 1e6, failures, p50, p95, p99)


def _h2load(folder: Path, address: str, request: Request, clients: int, seconds: int) -> Outcome:
    fields = {"content-type": "application/grpc", "te": "trailers", **request.headers}
    headers = [part for name, value in fields.items() for part in ("-H", f"{name}: {value}")]
    # One stream at a time for each connection, and windows so large that flow control never pauses a transfer.
    shape = ["-t1", f"-c{clients}", "-m1", f"-D{seconds}", "-w20", "-W24"]
    url = f"http://{address}{request.path}"
    text = _run(["h2load", *shape, "-d", "body", *headers, "--log-file=log", url], folder, seconds)
    return parse_h2load(text, (folder / "log").read_text().splitlines())


def parse_h2load(text: str, log: Sequence[str]) -> Outcome:
    """Read h2load's summary, and its log: a line of start, HTTP status and microseconds for each request."""
    seconds = re.search(r"finished in ([\d.]+)(us|ms|s)", text)
    if seconds is None:
        raise ValueError(f"h2load printed no result:\n{text}")
    rows = [line.split() for line in log]
    good = [int(microseconds) / 1e6 for _, status, microseconds in rows if status == "200"]
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[seconds[2]]
    return outcome(good, float(seconds[1]) * unit, len(rows) - len(good))


def _run(command: list[str], folder: Path, seconds: int) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds + 60, check=False)
    return done.stdout + done.stderr
