"""Readings of the Prometheus metrics that guardrails ask for: from this server's own page, or from a Prometheus server.

A page's gauge is read as it is, a counter as what it grew by since the last reading, and for how many requests of the arm, for
the arms get different shares of the traffic. A query is asked as it stands and gives one number for each arm. A reading is of
both arms at one moment.
Source of the query's form: Prometheus, HTTP API, instant queries.
"""

import asyncio
import json
import logging
import re
import urllib.parse
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from repository.config.traffic import Guardrail, TrafficPolicy
from serving.traffic.figures import ArmFigures
from serving.traffic.significance import Counted

log = logging.getLogger(__name__)

MAX_ANSWER = 256 << 10  # bytes of a query's answer, which is one number
MIN_READINGS = 20
TOO_LARGE = 1e100  # to be reckoned with; NaN and the infinities are no numbers either
PAGE_INTERVAL_S = 1.0
QUERY_INTERVAL_S = 5.0
MAX_READINGS = 600
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)(?: \d+)?", re.ASCII)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_COUNTER_ENDS = ("_total", "_sum", "_count", "_bucket")


class PageReading(NamedTuple):
    """What a page says of one metric. value: of all series with the labels together; None where there is none."""

    counter: bool
    value: float | None


def read_page(page: str, name: str, labels: dict[str, str]) -> PageReading:
    """Read one metric of a page in Prometheus' text format."""
    counter, found, values = name.endswith(_COUNTER_ENDS), False, 0.0
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = (*line.split(" "), "", "")[:4]
            counter = counter or (family == name and kind == "counter")
        elif line.startswith(name) and (sample := _SAMPLE.fullmatch(line)) and sample["name"] == name:
            given = dict(_LABEL.findall(sample["labels"] or ""))
            if all(given.get(label) == value for label, value in labels.items()):
                values, found = values + float(sample["value"]), True
    return PageReading(counter, values if found else None)


class Readings:
    """The latest readings of both arms, as many of each: what was read, and 1; or where it is `counted` what was counted, and
    in how many requests. problem: why there are none, or no further ones; "" where there are."""

    def __init__(self, most: float) -> None:
        self.stable: deque[Counted] = deque(maxlen=max(MIN_READINGS, min(MAX_READINGS, int(most))))
        self.candidate: deque[Counted] = deque(maxlen=self.stable.maxlen)
        self.counted = False
        self.problem = ""

    def add(self, stable: Counted, candidate: Counted) -> None:
        self.stable.append(stable)
        self.candidate.append(candidate)
        self.problem = ""

    def miss(self, problem: str) -> None:
        """There is none at this moment; what was read before grows old."""
        self.problem = problem
        for arm in (self.stable, self.candidate):
            if arm:
                arm.popleft()


class PageReader:
    """Reads a metric of this server's own page for both arms."""

    def __init__(
        self, guardrail: Guardrail, arms: dict[str, tuple[dict[str, str], ArmFigures]], window_s: float
    ) -> None:
        """arms: "stable" and "candidate" -> the labels of the arm's series, and its figures."""
        self.readings = Readings(window_s / PAGE_INTERVAL_S)
        self.name = guardrail.name
        self._arms = arms
        self._before: list[Counted] = []  # each arm's counter, and its requests then

    def read(self, page: str) -> None:
        found = {name: read_page(page, self.name, labels) for name, (labels, _) in self._arms.items()}
        values = [
            reading.value for reading in found.values() if reading.value is not None and abs(reading.value) < TOO_LARGE
        ]
        if len(values) < len(found):
            missing = [f"the {name} arm" for name, reading in found.items() if reading.value not in values]
            told = f"the server's metrics have no number '{self.name}' with the labels of {' and '.join(missing)}"
            self.readings.miss(told)
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
        if any(map(any, grown)) and all(value >= 0 for value, _ in grown):  # else a counter began anew
            self.readings.add(*grown)


class QueryReader:
    """Asks a Prometheus server for both arms. `fetch`: gets a URL that is allowed, within bounds of time and bytes."""

    def __init__(self, guardrail: Guardrail, fetch: Callable[[str], Awaitable[bytes]], window_s: float) -> None:
        self.readings = Readings(window_s / QUERY_INTERVAL_S)
        self._guardrail = guardrail
        self._fetch = fetch

    async def read(self) -> None:
        """Ask once; what goes wrong is the readings' problem."""
        asked = self._guardrail
        try:
            stable, candidate = await asyncio.gather(self._value(asked.stable), self._value(asked.candidate))
        except Exception as error:
            self.readings.miss(f"Prometheus at {asked.url} gave no value: {error}")
            return
        self.readings.add((stable, 1.0), (candidate, 1.0))

    async def _value(self, query: str) -> float:
        url = f"{self._guardrail.url.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        value = query_value(await self._fetch(url))
        if value is None:
            raise ValueError(f"the query '{query[:200]}' finds nothing")
        return value


def query_value(answer: bytes) -> float | None:
    """Return the number of an instant query's answer, a scalar or the one sample of a vector; None for no sample.

    ValueError for anything else.
    """
    if len(answer) > MAX_ANSWER:
        raise ValueError(f"the answer has more than {MAX_ANSWER >> 10} KiB; sum the series up")
    try:
        content = json.loads(answer)
        kind, result = content["data"]["resultType"], content["data"]["result"]
        if kind == "vector" and len(result) > 1:
            raise ValueError(f"the query finds {len(result)} series; sum them up")
        if kind == "vector" and not result:
            return None
        value = float((result if kind == "scalar" else result[0]["value"])[1])
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("the answer is no instant query's") from error
    return value if abs(value) < TOO_LARGE else None


class PrometheusValues:
    """The readers of one rollout's guardrails, and the tasks that have them read."""

    def __init__(self, page: Callable[[], Iterable[str]], fetch: Callable[[str], Awaitable[bytes]]) -> None:
        """page: renders this server's own metrics, in pieces that take little time each."""
        self._page = page
        self._fetch = fetch
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, policy: TrafficPolicy, arms: dict[str, tuple[dict[str, str], ArmFigures]]) -> dict[int, Readings]:
        """Have what a policy's guardrails ask for read from here on, and nothing else. Return the readings by the guardrail's
        place."""
        self.close()
        asked = {place: one for place, one in enumerate(policy.guardrails) if one.metric == "prometheus"}
        pages = {place: PageReader(one, arms, policy.window_s) for place, one in asked.items() if not one.url}
        queries = {place: QueryReader(one, self._fetch, policy.window_s) for place, one in asked.items() if one.url}
        loop = asyncio.get_running_loop()
        if pages:
            self._tasks.append(loop.create_task(self._read_pages(list(pages.values()))))
        self._tasks += [loop.create_task(_ask(reader)) for reader in queries.values()]
        readers: dict[int, PageReader | QueryReader] = {**pages, **queries}
        return {place: reader.readings for place, reader in readers.items()}

    def close(self) -> None:
        """Read no more."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    async def _read_pages(self, readers: list[PageReader]) -> None:
        while True:
            try:
                pieces = []
                for piece in self._page():
                    if any(reader.name in piece for reader in readers):
                        pieces.append(piece)
                    await asyncio.sleep(0)  # with many models the page takes long: requests go first
                for reader in readers:
                    reader.read("".join(pieces))
            except Exception:
                log.exception("the server's metrics could not be read for a guardrail; trying again")
            await asyncio.sleep(PAGE_INTERVAL_S)


async def _ask(reader: QueryReader) -> None:
    while True:
        await reader.read()
        await asyncio.sleep(QUERY_INTERVAL_S)
