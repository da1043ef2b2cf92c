"""HTTP load by wrk (apt install wrk), which costs the machine less than any client in Python."""

import re
import subprocess
import tempfile
from pathlib import Path

from benchmarks.result import Result

_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def measure(address: str, path: str, body: bytes, headers: dict[str, str], clients: int, seconds: int) -> Result:
    """`clients` connections that POST the same body to "host:port" one request after the other."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "body").write_bytes(body)
        lines = ['local file = io.open("body", "rb")', 'wrk.method = "POST"', 'wrk.body = file:read("*all")']
        lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
        Path(folder, "post.lua").write_text("\n".join(lines))
        command = [
            "wrk",
            "-t1",
            f"-c{clients}",
            f"-d{seconds}s",
            "--latency",
            "-s",
            "post.lua",
            f"http://{address}{path}",
        ]
        text = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=seconds + 30
        ).stdout
    return _parse(text)


def _parse(text: str) -> Result:
    requests, seconds = re.search(r"(\d+) requests in ([\d.]+)s", text).groups()  # type: ignore[union-attr]
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Result(
        requests=int(requests),
        seconds=float(seconds),
        failures=int(failed[1]) if failed else 0,
        p50_ms=_milliseconds(text, "50%"),
        p99_ms=_milliseconds(text, "99%"),
    )


def _milliseconds(text: str, percent: str) -> float:
    number, unit = re.search(rf"{percent}\s+([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]
