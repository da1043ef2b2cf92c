"""Turns the times and calls of packages into a table of stages."""

from typing import NamedTuple

# Stage -> the beginnings of the names of its packages. All other packages belong to "the rest".
STAGES = {
    "event loop: wait, receive, call": ("loop",),
    "connection: frames, heads, sending": ("serving/frontends/http1", "serving/frontends/http2"),
    "protocol: decode the request, encode the answer": ("serving/frontends",),
    "server and model: find, check, count": (
        "serving/server",
        "serving/models",
        "serving/core",
        "serving/extensions",
        "serving/resources",
        "serving/telemetry",
    ),
    "scheduler: queue, batch": ("serving/scheduling",),
    "instance and backend, with the runtime": ("serving/execution", "serving/backends"),
}
REST = "the rest"


class Column(NamedTuple):
    """One path. us, calls: microseconds and calls by stage, for each request. process_us: the CPU time of all threads.
    child_us: the CPU time of the child processes."""

    name: str
    us: dict[str, float]
    calls: dict[str, float]
    process_us: float
    child_us: float
    instructions: int | None


def by_stage(rooms: dict[str, int]) -> dict[str, float]:
    found = dict.fromkeys([*STAGES, REST], 0.0)
    for room, amount in rooms.items():
        found[next((stage for stage, names in STAGES.items() if room.startswith(names)), REST)] += amount
    return found


def render(columns: list[Column]) -> str:
    """Return the table in Markdown: microseconds, with the number of calls in brackets."""
    lines = ["| stage | " + " | ".join(column.name for column in columns) + " |", "| --- " * (len(columns) + 1) + "|"]
    for stage in [*STAGES, REST]:
        cells = [f"{column.us[stage]:.1f} ({column.calls[stage]:.0f})" for column in columns]
        lines.append(f"| {stage} | " + " | ".join(cells) + " |")
    loops = [f"{sum(column.us.values()):.0f} ({sum(column.calls.values()):.0f})" for column in columns]
    others = [f"{max(0.0, column.process_us - sum(column.us.values())):.0f}" for column in columns]
    lines.append("| **the loop's thread** | " + " | ".join(loops) + " |")
    lines.append("| other threads | " + " | ".join(others) + " |")
    lines.append("| the model's process | " + " | ".join(f"{column.child_us:.0f}" for column in columns) + " |")
    counted = [f"{column.instructions / 1000:.0f}" if column.instructions else "–" for column in columns]
    lines.append("| thousands of instructions, all processes | " + " | ".join(counted) + " |")
    return "\n".join(lines)
