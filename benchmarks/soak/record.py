"""The counts of a soak, in a file from which a later run continues, and as a page."""

import json
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

_GRPC_CODES = {str(code.value[0]): code.name for code in grpc.StatusCode}
HANGS_S = 60.0  # a request without an answer after this time counts as hung


@dataclass
class Failure:
    """One kind of failure. count: how often it happened. during: the disturbances under way, or "nothing"."""

    kind: str
    reason: str
    during: str
    expected: bool
    count: int = 0


@dataclass
class Usage:
    """The number, resident bytes and file descriptors of all processes with one task."""

    processes: int = 0
    resident: int = 0
    descriptors: int = 0


@dataclass
class Segment:
    """One run of the program. An interrupted soak has several segments."""

    started: str = ""
    seconds: float = 0.0
    answered: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    disturbances: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    # "before", "most", "after", "at the end" -> task -> usage
    usage: dict[str, dict[str, Usage]] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return sum(self.answered.values()) + sum(failure.count for failure in self.failures.values())

    def fail(self, kind: str, reason: str, during: str, expected: bool) -> None:
        reason = _kind_of(reason)
        key = f"{kind}|{reason}|{during}|{expected}"
        self.failures.setdefault(key, Failure(kind, reason, during, expected)).count += 1

    def most(self, usage: dict[str, Usage]) -> None:
        """Note the largest usage of each task so far."""
        held = self.usage.setdefault("most", {})
        for task, now in usage.items():
            before = held.setdefault(task, Usage())
            held[task] = Usage(
                max(before.processes, now.processes),
                max(before.resident, now.resident),
                max(before.descriptors, now.descriptors),
            )


def _kind_of(reason: str) -> str:
    """Return the code and sentence of a reason, without the parts that differ from request to request."""
    code, _, sentence = reason.partition(" ")
    code = re.sub(r"[^\w.]", "", code).removeprefix("StatusCode.")
    if code == "gRPC":
        number, _, sentence = sentence.partition(" ")
        code = _GRPC_CODES.get(number, f"gRPC {number}")
    elif not code.isdigit() and not code.isupper():
        code, sentence = "", reason
    sentence = re.sub(r'^{"error":"(.*)"}$', r"\1", sentence.strip())
    sentence = re.sub(
        r"ipv[46]:\S+|\d+(\.\d+){3}(:\d+)?", "ADDRESS", re.sub(r"(?<!\w)'[^']*'(?!\w)", "'...'", sentence)
    )
    return f"{code} {re.sub(r'[0-9]+', 'N', sentence)}".strip()[:160]


class Record:
    """All segments of one soak, in `folder`."""

    def __init__(self, folder: Path, requests: int, begin_anew: bool) -> None:
        self._state = folder / "soak.json"
        self.page = folder / "soak.md"
        self.requests = requests
        folder.mkdir(parents=True, exist_ok=True)
        self.earlier = [] if begin_anew else self._read()
        if sum(segment.asked for segment in self.earlier) >= requests:
            self.earlier = []  # the earlier soak was complete
        self.segment = Segment(time.strftime("%Y-%m-%d %H:%M"))

    @property
    def left(self) -> int:
        """The number of requests that this run must send."""
        return self.requests - sum(segment.asked for segment in self.earlier)

    @property
    def segments(self) -> list[Segment]:
        return [*self.earlier, self.segment]

    def save(self) -> None:
        part = self._state.with_suffix(".part")
        part.write_text(json.dumps([_row(segment) for segment in self.segments]))
        os.replace(part, self._state)

    def _read(self) -> list[Segment]:
        if not self._state.exists():
            return []
        return [_segment(row) for row in json.loads(self._state.read_text())]

    @property
    def unexpected(self) -> int:
        failures = (failure for segment in self.segments for failure in segment.failures.values())
        return sum(failure.count for failure in failures if not failure.expected)

    @property
    def problems(self) -> list[str]:
        return [problem for segment in self.segments for problem in segment.problems]


def _row(segment: Segment) -> dict[str, Any]:
    usage = {when: {task: vars(one) for task, one in tasks.items()} for when, tasks in segment.usage.items()}
    failures = {key: vars(failure) for key, failure in segment.failures.items()}
    return {**vars(segment), "usage": usage, "failures": failures}


def _segment(row: dict[str, Any]) -> Segment:
    usage = {when: {task: Usage(**values) for task, values in tasks.items()} for when, tasks in row["usage"].items()}
    return Segment(
        **{
            **row,
            "answered": Counter(row["answered"]),
            "disturbances": Counter(row["disturbances"]),
            "failures": {key: Failure(**values) for key, values in row["failures"].items()},
            "usage": usage,
        }
    )


def markdown(record: Record, commit: str, machine: str) -> str:
    """Return the page: requests by kind, failures by reason, disturbances, memory and file descriptors."""
    segments = record.segments
    asked, seconds = sum(segment.asked for segment in segments), sum(segment.seconds for segment in segments)
    runs = "one run" if len(segments) == 1 else f"{len(segments)} runs, each with a new `manage.py up`"
    parts = [
        "## A soak\n",
        f"Written by `make soak` on {segments[-1].started[:10]}: {asked:,} requests in {seconds:,.0f} s ({runs}) to a "
        "complete `manage.py up`. One process sent them, with raw clients and a few stock clients. Every answer was checked.\n",
        f"Commit {commit}; machine: {machine}.\n",
        _requests(segments),
        _failures(segments),
        _done(segments),
        *(_usage(segment, index, len(segments)) for index, segment in enumerate(segments)),
    ]
    if record.problems:
        parts.append("Problems:\n\n" + "".join(f"* {problem}\n" for problem in record.problems))
    return "\n".join(parts)


def _requests(segments: list[Segment]) -> str:
    answered: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    unexpected: Counter[str] = Counter()
    for segment in segments:
        answered.update(segment.answered)
        for failure in segment.failures.values():
            (expected if failure.expected else unexpected)[failure.kind] += failure.count
    rows = ["| requests | answered | failed, expected | failed, unexpected |", "| --- | ---: | ---: | ---: |"]
    kinds = sorted({*answered, *expected, *unexpected})
    rows += [f"| {kind} | {answered[kind]:,} | {expected[kind]:,} | {unexpected[kind]:,} |" for kind in kinds]
    total = (sum(counts.values()) for counts in (answered, expected, unexpected))
    return "\n".join([*rows, "| all | " + " | ".join(f"{count:,}" for count in total) + " |", ""])


def _failures(segments: list[Segment]) -> str:
    together: Counter[tuple[str, str, str]] = Counter()
    for segment in segments:
        for failure in segment.failures.values():
            together["expected" if failure.expected else "UNEXPECTED", failure.during, failure.reason] += failure.count
    if not together:
        return "No request failed.\n"
    rows = ["| failed | during | reason | requests |", "| --- | --- | --- | ---: |"]
    for (what, during, reason), count in sorted(together.items(), key=lambda row: (row[0][0], -row[1])):
        rows.append(f"| {what} | {during} | {reason.replace('|', '/')} | {count:,} |")
    return "\n".join([*rows, ""])


def _done(segments: list[Segment]) -> str:
    done: Counter[str] = Counter()
    for segment in segments:
        done.update(segment.disturbances)
    rows = ["| disturbance | times |", "| --- | ---: |"]
    return "\n".join([*rows, *(f"| {what} | {count:,} |" for what, count in sorted(done.items())), ""])


def _usage(segment: Segment, index: int, count: int) -> str:
    whens = [when for when in ("before", "most", "after", "at the end") if when in segment.usage]
    tasks = sorted({task for when in whens for task in segment.usage[when]})
    title = "" if count == 1 else f"Run {index + 1}, {segment.started}:\n\n"
    head = "| process | " + " | ".join(f"{when}: MB | files" for when in whens) + " |"
    rows = [head, "| --- |" + " ---: | ---: |" * len(whens)]
    for task in tasks:
        found = [segment.usage[when].get(task, Usage()) for when in whens]
        cells = " | ".join(f"{one.resident / 1e6:.0f} | {one.descriptors}" for one in found)
        rows.append(f"| {task} | {cells} |")
    return title + "\n".join([*rows, ""])
