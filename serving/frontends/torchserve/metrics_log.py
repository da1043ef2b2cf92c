"""TorchServe's metrics as lines of files, in its modes "log" and "legacy": ts_metrics.log, and model_metrics.log of handlers.

A line is `name.unit:value|#label:value,...|#hostname:host,timestamp:seconds`. TorchServe writes one for each event; here an
interval's events are one line with their sum, so that whoever adds up lines gets the same, and a prediction costs nothing.
Source: docs/metrics.md of TorchServe 0.12, Log Mode.
"""

import asyncio
import contextlib
import datetime
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from serving.frontends.shared.worker_threads import in_thread
from serving.frontends.torchserve.metric_families import Family
from serving.frontends.torchserve.metric_values import MetricValues

log = logging.getLogger(__name__)

LONGEST = 100 << 20  # bytes of a file; then it is kept as .1, and a new one begins
_SERIES = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class MetricsLog:
    """Writes what has changed, every `interval_s` and at the end."""

    def __init__(self, values: MetricValues, folder: Path, interval_s: float, without: Iterable[str] = ()) -> None:
        """without: names of families that are shown elsewhere."""
        self._values = values
        self._folder = folder
        self._interval_s = interval_s
        self._without = frozenset(without)
        self._before: dict[tuple[str, str], float] = {}  # counters, as they were written last
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write what has come since, and stop."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self.write()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.write()

    async def write(self) -> None:
        """Write one line for each series; none for a counter that stands still."""
        try:
            await self._values.refreshed()
            families = self._values.families
            own = [line for family in families.own for line in self._lines(family)]
            custom = dict(self._values.custom())
            model = [line for family in families.model if family.name not in custom for line in self._lines(family)]
            model += self._custom(custom, {family.name: family.unit for family in families.model})
            await in_thread(self._append, {"ts_metrics.log": own, "model_metrics.log": model})
        except Exception:
            log.exception("writing the metrics failed; trying again")

    def _lines(self, family: Family) -> Iterator[str]:
        if family.name in self._without:
            return
        for labels, value in self._values.samples(family):
            told = self._told(family.name, family.type, str(labels), value)
            if told is not None:
                yield self._line(family.name, family.unit, labels, told)

    def _custom(self, families: Mapping[str, str], units: Mapping[str, str]) -> Iterator[str]:
        """Return the lines of what handlers show; of a histogram how its sum and count have grown."""
        for name, text in families.items():
            for line in text.splitlines():
                match = None if line.startswith("#") else _SERIES.fullmatch(line)
                if match is None or match[1].endswith("_bucket"):
                    continue
                grows = f"# TYPE {name} counter" in text or match[1] != name
                told = self._told(match[1], "counter" if grows else "gauge", match[2] or "", float(match[3]))
                if told is not None:
                    yield self._line(match[1], units.get(name, "count"), _LABEL.findall(match[2] or ""), told)

    def _told(self, name: str, kind: str, labels: str, value: float) -> float | None:
        """Return what a line says of a series: how much a counter has grown, None where it has not."""
        if kind != "counter":
            return value
        grown = value - self._before.get((name, labels), 0.0)
        self._before[name, labels] = value
        return grown or None

    def _line(self, name: str, unit: str, labels: Iterable[tuple[str, str]], value: float) -> str:
        shown = ",".join(f"{label}:{one}" for label, one in labels if label.lower() != "hostname")
        when = datetime.datetime.now().isoformat(timespec="milliseconds").replace(".", ",")
        return f"{when} - {name}.{unit}:{value!r}|#{shown}|#hostname:{self._values.host},timestamp:{int(time.time())}\n"

    def _append(self, texts: Mapping[str, list[str]]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, lines in texts.items():
            path = self._folder / name
            if path.exists() and path.stat().st_size > LONGEST:
                path.replace(path.with_name(f"{name}.1"))
            with path.open("a") as file:
                file.writelines(lines)
