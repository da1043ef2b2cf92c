"""TorchServe's metrics as lines of files, in its modes "log" and "legacy": ts_metrics.log, and model_metrics.log for handlers.

A line is `name.unit:value|#label:value,...|#hostname:host,timestamp:seconds`. TorchServe writes one line for each event. This
module writes one line for all events of a second, with their sum or the last value. So sums over lines stay the same, without a
line for each prediction. Metrics of the machine are written at start and once in each interval. Source:
docs/metrics.md of TorchServe 0.12, Log Mode.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from serving.frontends.shared.worker_threads import in_thread
from serving.torchserve.telemetry.log_file import LogFile, stamp
from serving.torchserve.telemetry.metric_families import Family
from serving.torchserve.telemetry.metric_values import MetricValues

log = logging.getLogger(__name__)

LOADS = "WorkerLoadTime"  # written once for each load
PAUSE_S = 1.0  # the pause between two writes
_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricsLog:
    """Writes events each second and at the end, and metrics of the machine every `interval_s`."""

    def __init__(self, values: MetricValues, folder: Path, interval_s: float, without: Iterable[str] = ()) -> None:
        """without: names of families to leave out."""
        self._values = values
        self._folder = folder
        self._interval_s = interval_s
        self._without = frozenset(without)
        self._before: dict[tuple[str, str], float] = {}  # the values of counters and load times at the last write
        self._answered: Counter[str] = Counter()  # predictions of each model at the last write
        self._files: dict[str, LogFile] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._files = {name: LogFile(self._folder / name) for name in ("ts_metrics.log", "model_metrics.log")}
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write the last events, and stop."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self.write()
        for file in self._files.values():
            file.close()

    async def _run(self) -> None:
        measured_s = -self._interval_s
        while True:
            now = time.monotonic()
            due = now - measured_s >= self._interval_s
            if due:
                measured_s = now
            await self.write(measured=due)
            await asyncio.sleep(PAUSE_S)

    async def write(self, measured: bool = False) -> None:
        """Write one line for each series that has changed. measured: whether to write the metrics of the machine too."""
        try:
            if measured:
                await self._values.refreshed()
            answered = self._values.answered()
            active = answered - self._answered
            self._answered = answered
            own = [line for family in self._values.families.own for line in self._lines(family, active, measured)]
            model = list(self._of_models(active)) if active else []
            if own or model:
                await in_thread(self._append, {"ts_metrics.log": own, "model_metrics.log": model})
        except Exception:
            log.exception("writing the metrics failed; trying again")

    def _append(self, texts: Mapping[str, list[str]]) -> None:
        for name, lines in texts.items():
            self._files[name].append("".join(lines))

    # -- lines -----------------------------------------------------------------------------------------------------
    def _lines(self, family: Family, active: Counter[str], measured: bool) -> Iterator[str]:
        """Yield the lines of one of the server's families. active: the models that have answered since the last write."""
        name = family.name
        if name in self._without or (name in self._values.system and not measured):
            return
        last = family.type != "counter" and name != LOADS and name not in self._values.system
        if last and not active:
            return  # no prediction since the last write
        for labels, value in self._values.samples(family):
            if family.type == "counter":
                value = self._grown(name, str(labels), value)
            elif name == LOADS and not self._grown(name, str(labels), value):
                continue
            if value or family.type != "counter":
                yield self._line(name, family.unit, labels, value)

    def _of_models(self, active: Counter[str]) -> Iterator[str]:
        """Yield the lines about handlers, and of handlers' own metrics, for models that have answered since the last write."""
        custom = dict(self._values.custom())
        for family in self._values.families.model:
            if family.name not in custom:
                for labels, value in self._values.samples(family):
                    if not labels or labels[0][1] in active:
                        yield self._line(family.name, family.unit, labels, value)
        known = {family.name: family for family in self._values.families.model}
        for name, text in custom.items():
            yield from self._custom(known.get(name) or Family(name, "", "count", ()), text, active)

    def _custom(self, family: Family, text: str, active: Counter[str]) -> Iterator[str]:
        """Yield the lines of one family of handlers. For a histogram, the lines have the growth of its sum and of its count."""
        for line in text.splitlines():
            match = None if line.startswith("#") else _SERIES.fullmatch(line)
            if match is None or match[1].endswith("_bucket"):
                continue
            found = dict(_LABEL.findall(match[2] or ""))
            labels = [(name, found[name]) for name in (*family.dimensions, *found) if name in found]
            labels = list(dict(labels).items())  # in the family's order
            value = float(match[3])
            if f"# TYPE {family.name} counter" in text or match[1] != family.name:
                value = self._grown(match[1], match[2] or "", value)
                if value:
                    yield self._line(match[1], family.unit, labels, value)
            elif found.get("ModelName", next(iter(active))) in active:
                yield self._line(match[1], family.unit, labels, value)

    def _grown(self, name: str, labels: str, value: float) -> float:
        """Return the change of a series since the last call."""
        grown = value - self._before.get((name, labels), 0.0)
        self._before[name, labels] = value
        return grown

    def _line(self, name: str, unit: str, labels: Iterable[tuple[str, str]], value: float) -> str:
        now = time.time()
        shown = ",".join(f"{label}:{one}" for label, one in labels if label.lower() != "hostname")
        return f"{stamp(now)} - {name}.{unit}:{value!r}|#{shown}|#hostname:{self._values.host},timestamp:{int(now)}\n"
