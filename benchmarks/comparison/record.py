"""Stores measurements: line by line during a run, so that an interrupted run can continue, and as one JSON file at the end."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dashboard.loads.outcome import Outcome


@dataclass(frozen=True)
class Key:
    """Identifies a measurement. case: the model and the encoding. load: "32 clients", or "80% load" for an open loop."""

    round: int
    server: str
    case: str
    load: str


@dataclass(frozen=True)
class Measurement:
    """One load on one server.

    cpu_us: the CPU time of the server's process tree for each request. root_us: the CPU time of its first process for each
    request. offered: arrivals a second. client_share: the share of a core that the load generator used. The last two
    are 0 for a closed loop.
    """

    key: Key
    requests: int
    failures: int
    per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_us: float
    root_us: float
    offered: float = 0.0
    client_share: float = 0.0

    @classmethod
    def of(
        cls,
        key: Key,
        outcome: Outcome,
        cpu_s: float,
        root_s: float = 0.0,
        offered: float = 0.0,
        client_share: float = 0.0,
    ) -> "Measurement":
        count = max(outcome.requests, 1)
        return cls(
            key,
            outcome.requests,
            outcome.failures,
            round(outcome.per_second, 1),
            *(round(value, 4) for value in (outcome.p50_ms, outcome.p95_ms, outcome.p99_ms)),
            *(round(seconds * 1e6 / count, 2) for seconds in (cpu_s, root_s)),
            *(round(value, 2) for value in (offered, client_share)),
        )

    def as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        if not self.offered:
            del fields["offered"], fields["client_share"]
        return {**fields.pop("key"), **fields}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Measurement":
        key = Key(*(fields.pop(name) for name in ("round", "server", "case", "load")))
        return cls(key, **fields)


@dataclass
class Results:
    """A whole run. about: date, machine, settings, versions, and the servers that could not take part, with the reasons."""

    about: dict[str, Any] = field(default_factory=dict)
    measurements: dict[Key, Measurement] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Measurement]:
        return iter(self.measurements.values())

    def write(self, path: Path) -> None:
        """Write one measurement on each line, so that people can compare two runs."""
        lines = ",\n".join(json.dumps(one.as_json()) for one in self)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"about": {json.dumps(self.about, indent=1)},\n"measurements": [\n{lines}\n]}}\n')

    @classmethod
    def read(cls, path: Path) -> "Results":
        content = json.loads(path.read_text())
        found = [Measurement.from_json(fields) for fields in content["measurements"]]
        return cls(content["about"], {one.key: one for one in found})


class Unfinished:
    """The measurements of an unfinished run, in a file of lines; the first line has the settings of the run."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path = path
        self.measurements: dict[Key, Measurement] = {}
        head = json.dumps(settings)
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and lines[0] == head:
            found = [Measurement.from_json(json.loads(line)) for line in lines[1:]]
            self.measurements = {one.key: one for one in found}
            print(f"Going on with a run that has {len(found)} measurements; remove {path} to begin anew.", flush=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{head}\n")

    def __contains__(self, key: Key) -> bool:
        return key in self.measurements

    def add(self, one: Measurement) -> None:
        self.measurements[one.key] = one
        with self._path.open("a") as file:
            file.write(json.dumps(one.as_json()) + "\n")

    def finish(self) -> None:
        self._path.unlink()
