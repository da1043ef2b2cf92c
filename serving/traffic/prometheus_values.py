"""Reads the Prometheus metrics of guardrails from this server's own metrics, or from a Prometheus server.

A reading has both arms at the same moment. The reading of a gauge is its value. The reading of a counter is its growth and the
arm's number of requests since the previous reading, because the arms get different shares of the traffic. A query to a
Prometheus server is sent unchanged, and gives one number for each arm.
Source: Prometheus' documentation: HTTP API, instant queries.
"""

import asyncio
import json
import logging
import random
import re
import urllib.parse
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from json import JSONDecodeError
from typing import NamedTuple

from repository.config.traffic import Guardrail, TrafficPolicy
from serving.telemetry.label_text import escape_label
from serving.traffic.figures import ArmFigures
from serving.traffic.significance import Counted

log = logging.getLogger(__name__)

MAX_ANSWER = 256 << 10  # bytes in the answer to a query; a right answer is one number
MIN_READINGS = 20
TOO_LARGE = 1e100  # larger numbers would overflow in sums of squares
PAGE_INTERVAL_S = 1.0
QUERY_INTERVAL_S = 5.0
MAX_READINGS = 600
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_COUNTER_ENDS = ("_total", "_sum", "_count", "_bucket")


class PageReading(NamedTuple):
    """One metric of a page. value: the sum of all series with the labels, or None if there are no such series. counter: whether
    the metric is a counter."""

    counter: bool
    value: float | None


def read_page(page: str, name: str, labels: dict[str, str]) -> PageReading:
    """Read one metric of a page in Prometheus' text format."""
    counter, found, values = name.endswith(_COUNTER_ENDS), False, 0.0
    wanted = {label: escape_label(value) for label, value in labels.items()}
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = (*line.split(" "), "", "")[:4]
            counter = counter or (family == name and kind == "counter")
        elif line.startswith(name) and (sample := _SAMPLE.fullmatch(line)) and sample["name"] == name:
            given = dict(_LABEL.findall(sample["labels"] or ""))
            if all(given.get(label) == value for label, value in wanted.items()):
                values, found = values + float(sample["value"]), True
    return PageReading(counter, values if found else None)


class Readings:
    """The latest readings of both arms. Implements guardrails.Values, in which `problem` is "" if there is no problem."""

    def __init__(self, most: float, stable: Iterable[Counted] = ()) -> None:
        """most: how many readings to keep. stable: remembered readings of the stable arm."""
        self.stable = deque(stable, maxlen=max(MIN_READINGS, min(MAX_READINGS, int(most))))
        self.candidate: deque[Counted] = deque(maxlen=self.stable.maxlen)
        self.remembered = bool(self.stable)
        self.counted = False
        self.problem = ""

    def add(self, stable: Counted, candidate: Counted) -> None:
        if not self.remembered:
            self.stable.append(stable)
        self.candidate.append(candidate)
        self.problem = ""

    def miss(self, problem: str) -> None:
        """Record why a reading is missing, and drop the oldest reading."""
        self.problem = problem
        for arm in (self.candidate,) if self.remembered else (self.stable, self.candidate):
            if arm:
                arm.popleft()


class PageReader:
    """Reads a metric of this server for both arms."""

    def __init__(
        self, guardrail: Guardrail, arms: dict[str, tuple[dict[str, str], ArmFigures]], readings: Readings
    ) -> None:
        """arms: "stable" and "candidate" -> the labels of the arm's series, and its figures."""
        self.readings = readings
        self.name = guardrail.name
        self._arms = arms
        self._before: list[Counted] = []  # each arm's counter and requests at the previous reading

    def read(self, page: str) -> None:
        found = {name: read_page(page, self.name, labels) for name, (labels, _) in self._arms.items()}
        values = [
            reading.value for reading in found.values() if reading.value is not None and abs(reading.value) < TOO_LARGE
        ]
        if len(values) < len(found):
            missing = [f"the {name} arm" for name, reading in found.items() if reading.value not in values]
            message = f"the server's metrics have no number '{self.name}' with the labels of {' and '.join(missing)}"
            self.readings.miss(message)
            return
        self.readings.counted = any(reading.counter for reading in found.values())
        if not self.readings.counted:
            self.readings.add(*((value, 1.0) for value in values))
            return
        now = [
            (value, float(figures.requests)) for value, (_, figures) in zip(values, self._arms.values(), strict=True)
        ]
        before, self._before = self._before or now, now
        grown = [(one[0] - other[0], one[1] - other[1]) for one, other in zip(now, before, strict=True)]
        self.readings.problem = ""
        if any(map(any, grown)) and all(value >= 0 for value, _ in grown):  # a counter that shrank was reset
            self.readings.add(*grown)


class QueryReader:
    """Queries a Prometheus server about both arms. fetch: returns the body of an allowed URL, or raises."""

    def __init__(self, guardrail: Guardrail, fetch: Callable[[str], Awaitable[bytes]], readings: Readings) -> None:
        self.readings = readings
        self._guardrail = guardrail
        self._fetch = fetch

    async def read(self) -> None:
        """Send the queries once. An error becomes the readings' `problem`."""
        asked = self._guardrail
        try:
            queries = [asked.candidate] if self.readings.remembered else [asked.stable, asked.candidate]
            values = await asyncio.gather(*map(self._value, queries))
        except Exception as error:
            self.readings.miss(f"Prometheus at {asked.url} gave no value: {error}")
            return
        self.readings.add((values[0], 1.0), (values[-1], 1.0))

    async def _value(self, query: str) -> float:
        url = f"{self._guardrail.url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        answer = await self._fetch(url)
        try:
            return query_value(answer)
        except ValueError as error:
            raise ValueError(f"the query '{query[:200]}' {error}") from None


def query_value(answer: bytes) -> float:
    """Return the number in the answer to an instant query: a scalar, or the one sample of a vector.

    Raises ValueError for any other answer. Its message is a clause whose subject is the query.
    """
    if len(answer) > MAX_ANSWER:
        raise ValueError(f"finds more than {MAX_ANSWER >> 10} KiB; sum the series up")
    try:
        content = json.loads(answer)
        kind, result = content["data"]["resultType"], content["data"]["result"]
        if kind not in ("scalar", "vector"):
            raise ValueError(f"gives a {str(kind)[:20]}; ask for one number")
        if kind == "vector" and len(result) != 1:
            raise ValueError(f"finds {len(result)} series; sum them up" if result else "finds nothing")
        value = result[1] if kind == "scalar" else result[0]["value"][1]
    except (KeyError, TypeError, IndexError, JSONDecodeError) as error:
        raise ValueError("gets an answer that is not in Prometheus' format") from error
    try:
        if abs(number := float(value)) < TOO_LARGE:
            return number
    except (TypeError, ValueError):  # refused below
        pass
    raise ValueError(f"gives {str(value)[:20]}, which cannot be compared")


class PrometheusValues:
    """The metric readers of one rollout's guardrails, and their tasks."""

    def __init__(self, page: Callable[[], Iterable[str]], fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """page: renders this server's metrics of the rollout's model, in pieces."""
        self._page = page
        self._fetch = fetch
        self._tasks: list[asyncio.Task[None]] = []
        self._read: dict[Guardrail, Readings] = {}
        self._stable: ArmFigures | None = None  # the figures of the stable arm that `_read` belongs to

    def begin(self, policy: TrafficPolicy, arms: dict[str, tuple[dict[str, str], ArmFigures]]) -> dict[int, Readings]:
        """Begin to read only the metrics of this policy's guardrails. Return the readings by the guardrails' indexes."""
        self.close()
        asked = [one for one in policy.guardrails if one.metric == "prometheus"]
        same = arms["stable"][1] is self._stable
        before, self._stable = self._read if same and policy.weight >= 100 else {}, arms["stable"][1]
        self._read = {one: _new_readings(one, policy.window_s, before.get(one)) for one in asked}
        pages = [PageReader(one, arms, readings) for one, readings in self._read.items() if not one.url]
        loop = asyncio.get_running_loop()
        if pages:
            self._tasks.append(loop.create_task(self._read_pages(pages)))
        queries = [QueryReader(one, self._fetch, readings) for one, readings in self._read.items() if one.url]
        self._tasks += [loop.create_task(_ask(reader)) for reader in queries]
        return {place: self._read[one] for place, one in enumerate(policy.guardrails) if one in self._read}

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def _read_pages(self, readers: list[PageReader]) -> None:
        await asyncio.sleep(random.uniform(0, PAGE_INTERVAL_S))  # spreads the readings of many rollouts over time
        while True:
            try:
                page = "".join(piece for piece in self._page() if any(reader.name in piece for reader in readers))
                for reader in readers:
                    reader.read(page)
            except Exception:
                log.exception("the server's metrics could not be read for a guardrail; trying again")
                for reader in readers:
                    reader.readings.miss("the server's metrics could not be read; its log says why")
            await asyncio.sleep(PAGE_INTERVAL_S)


def _new_readings(guardrail: Guardrail, window_s: float, before: Readings | None) -> Readings:
    """Return empty readings. before: readings from a time with a smaller weight; stable's readings are taken over."""
    most = window_s / (QUERY_INTERVAL_S if guardrail.url else PAGE_INTERVAL_S)
    return Readings(most, before.stable if before is not None and len(before.stable) >= MIN_READINGS else ())


async def _ask(reader: QueryReader) -> None:
    while True:
        await reader.read()
        await asyncio.sleep(QUERY_INTERVAL_S)
