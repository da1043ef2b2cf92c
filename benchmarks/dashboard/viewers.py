"""Simulates people who watch live charts: their WebSockets, and the parts of their pages that refresh after a change."""

import asyncio
import random
import time
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

import aiohttp

from benchmarks.dashboard.house import House
from benchmarks.dashboard.pages import FED, HTMX, OPEN_LIST, OPEN_MODEL, OPEN_OVERVIEW
from benchmarks.machine import own_cpu_seconds
from tests.support.model_pages import model_name

SETTLE_S = 5.0
# The same values as in static/js/shell/regions.js.
METRICS, LONGEST_METRICS_S, LONGEST_S = "dashboard_metricsample", 60.0, 300.0
PAUSE_S, PAUSE_OF_ANSWERS, LONGEST_PAUSE_S = 1.0, 5, 10.0
AGAIN_S = 1.0  # as a page that has lost its WebSocket for the first time
CHANGE_EVERY_S = 10.0
# The pages that viewers open, one third each: the overview, the list, one model.
WATCHED = (("/ws/live/", OPEN_OVERVIEW), ("/ws/live/", OPEN_LIST), (f"/ws/live/?model={model_name(0)}", OPEN_MODEL))


class Site(Protocol):
    """A dashboard, and the session of a person who sees everything."""

    @property
    def url(self) -> str: ...
    @property
    def cookies(self) -> dict[str, str]: ...


class Watching(NamedTuple):
    """share: the share of a core that the web process uses. messages, parts: numbers a second, for all viewers together."""

    name: str
    viewers: int
    share: float
    messages: float
    parts: float


class _Counted:
    def __init__(self) -> None:
        self.messages = 0
        self.parts = 0
        self.opening = 0  # parts that have had no answer yet


class _Part:
    """A part of an open page, which refreshes by the same rules as in the browser."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reads: set[str] = set()
        self._old = asyncio.Event()

    def changed(self, tables: set[str]) -> None:
        if tables & self._reads:
            self._old.set()

    async def run(self, session: aiohttp.ClientSession, counted: _Counted) -> None:
        await self._ask(session)
        counted.opening -= 1
        longest = LONGEST_METRICS_S if METRICS in self._reads and self._path not in FED else LONGEST_S
        wait = random.uniform(0, longest)  # people opened their pages at different times
        while True:
            try:
                await asyncio.wait_for(self._old.wait(), wait)
            except TimeoutError:
                pass
            wait = longest
            self._old.clear()
            took = await self._ask(session)
            counted.parts += 1
            await asyncio.sleep(min(max(PAUSE_S, PAUSE_OF_ANSWERS * took), LONGEST_PAUSE_S))

    async def _ask(self, session: aiohttp.ClientSession) -> float:
        """Request the part as htmx does. Return the seconds until the answer."""
        began = time.monotonic()
        async with session.get(self._path, headers=HTMX) as answer:
            await answer.read()
            answer.raise_for_status()
        self._reads = set(answer.headers["Slipway-Reads"].split())
        return time.monotonic() - began


def measure_viewers(house: House, viewers: int, seconds: float) -> list[Watching]:
    """Return the load of the web process with no viewer, with one, with all viewers, and with all their pages."""
    return asyncio.run(_measure(house, viewers, seconds))


async def _measure(house: House, viewers: int, seconds: float) -> list[Watching]:
    pid = house.web_process()
    found = []
    for name, count, whole, changing in (
        ("nobody", 0, False, False),
        ("one WebSocket", 1, False, False),
        ("WebSockets alone", viewers, False, False),
        ("whole pages, nothing changes", viewers, True, False),
        (f"whole pages, a model changes every {CHANGE_EVERY_S:.0f} s", viewers, True, True),
    ):
        found.append(await watch(house, pid, name, count, whole, changing, seconds))
    return found


async def watch(
    house: Site,
    pid: int,
    name: str,
    viewers: int,
    whole: bool,
    changing: bool,
    seconds: float,
    watched: Sequence[tuple[str, Sequence[str]]] = WATCHED,
) -> Watching:
    """Return the load of the web process with so many viewers. watched: the WebSocket and the parts of each, in turn."""
    counted = _Counted()
    timeout = aiohttp.ClientTimeout(total=60.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        house.url, cookies=house.cookies, timeout=timeout, connector=connector, cookie_jar=_jar()
    ) as session:
        tasks: list[asyncio.Task[None]] = []
        for number in range(viewers):
            socket, paths = watched[number % len(watched)]
            work: list[Coroutine[Any, Any, None]] = [_follow(session, house.url, socket, counted)]
            if whole:
                parts = [_Part(path) for path in paths]
                counted.opening += len(parts)
                work += [_tell(session, house.url, parts), *(part.run(session, counted) for part in parts)]
            tasks += map(asyncio.create_task, work)
            while counted.opening:  # people open their pages one after another
                await _idle(tasks, 0.1)
        if changing:
            tasks.append(asyncio.create_task(_change(session, house)))
        try:
            await _idle(tasks, SETTLE_S)
            before, began = own_cpu_seconds(pid), time.monotonic()
            counted.messages = counted.parts = 0
            await _idle(tasks, seconds)
            spent = time.monotonic() - began
            share = (own_cpu_seconds(pid) - before) / spent
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    return Watching(name, viewers, share, counted.messages / spent, counted.parts / spent)


def _jar() -> aiohttp.CookieJar:
    return aiohttp.CookieJar(unsafe=True)  # it accepts cookies of an IP address


async def _idle(tasks: "list[asyncio.Task[None]]", seconds: float) -> None:
    """Wait for `seconds`. Raise an error if a viewer ends in that time."""
    if not tasks:
        await asyncio.sleep(seconds)
        return
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
        raise RuntimeError("a WebSocket was closed by the dashboard")


async def _connect(session: aiohttp.ClientSession, origin: str, path: str) -> aiohttp.ClientWebSocketResponse:
    """Connect a WebSocket, again while the dashboard is too busy with pages to answer within its limit of 5 s."""
    while True:
        try:
            return await session.ws_connect(path, headers={"Origin": origin})
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(AGAIN_S)


async def _follow(session: aiohttp.ClientSession, origin: str, path: str, counted: _Counted) -> None:
    async with await _connect(session, origin, path) as socket:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                counted.messages += 1


async def _tell(session: aiohttp.ClientSession, origin: str, parts: list[_Part]) -> None:
    """Report changes to the parts of one page."""
    async with await _connect(session, origin, "/ws/changes/") as socket:
        async for message in socket:
            tables = set(message.json().get("tables", ())) if message.type is aiohttp.WSMsgType.TEXT else set()
            for part in parts:
                part.changed(tables)


async def _change(session: aiohttp.ClientSession, house: Site) -> None:
    """Change a model again and again, as a person does over the REST API."""
    headers = {"X-CSRFToken": house.cookies["slipway_csrf"], "Referer": f"{house.url}/", "Origin": house.url}
    for number in range(10_000):
        path = f"/api/v1/models/{model_name(0)}"
        async with session.patch(path, headers=headers, json={"description": f"Change {number}"}) as answer:
            answer.raise_for_status()
        await asyncio.sleep(CHANGE_EVERY_S)
