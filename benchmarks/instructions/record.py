"""The recorded figures, and their comparison with new counts."""

import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

TOLERANCE = 0.10


@dataclass(frozen=True)
class Figures:
    """The instructions for each request, by path, and the instructions of the yardstick under the same Python."""

    python: str
    yardstick: int
    paths: dict[str, int]


def python_build() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}"


def path(compiled: bool) -> Path:
    """Return the file of the record. The compiled modules have a separate record."""
    return Path(__file__).parent / ("recorded_compiled.json" if compiled else "recorded.json")


def read(compiled: bool) -> Figures:
    return Figures(**json.loads(path(compiled).read_text()))


def write(figures: Figures, compiled: bool) -> None:
    path(compiled).write_text(json.dumps(asdict(figures), indent=2) + "\n")


def expected_here(recorded: Figures, yardstick: int) -> dict[str, float]:
    """Return the recorded figure of each path, scaled to this build of Python."""
    return {name: figure * yardstick / recorded.yardstick for name, figure in recorded.paths.items()}


def faults(counted: dict[str, int], expected: dict[str, float]) -> list[str]:
    """Return a sentence for each path that costs too much, or that is missing in the counts or in the record."""
    found = []
    for name in counted.keys() | expected.keys():
        if name not in expected:
            found.append(f"{name}: no figure is recorded")
        elif name not in counted:
            found.append(f"{name}: recorded, but no such path is counted")
        elif counted[name] > expected[name] * (1 + TOLERANCE):
            more = counted[name] / expected[name] - 1
            found.append(f"{name}: {counted[name]:,} instructions for each request, {more:.0%} more than recorded")
    return sorted(found)
