"""People who watch live charts: their WebSockets, and the parts of their pages that refresh themselves."""

import asyncio
import time
from typing import NamedTuple

import aiohttp

from benchmarks.dashboard.house import House, model_name
from benchmarks.dashboard.pages import HTMX, OPEN_LIST, OPEN_MODEL, OPEN_OVERVIEW
from benchmarks.machine import own_cpu_seconds

SETTLE_S = 5.0
# What they look at, in turn: the overview, the list, one model.
WATCHED = (("/ws/live/", OPEN_OVERVIEW), ("/ws/live/", OPEN_LIST), (f"/ws/live/?model={model_name(0)}", OPEN_MODEL))


class Watching(NamedTuple):
    """share: of a core, of the web process. messages and parts: a second, of all viewers together."""

    name: str
    viewers: int
    share: float
    messages: float
    parts: float


class _Counted:
    def __init__(self) -> None:
        self.messages = 0
        self.parts = 0


def measure_viewers(house: House, viewers: int, seconds: float) -> list[Watching]:
    """Return what the web process spends with nobody, one and all of the viewers, without and with what pages refresh."""
    return asyncio.run(_measure(house, viewers, seconds))


async def _measure(house: House, viewers: int, seconds: float) -> list[Watching]:
    pid = house.web_process()
    found = []
    for name, count, refreshing in (
        ("nobody", 0, False),
        ("one WebSocket", 1, False),
        ("WebSockets alone", viewers, False),
        ("whole pages", viewers, True),
    ):
        found.append(await _watch(house, pid, name, count, refreshing, seconds))
    return found


async def _watch(house: House, pid: int, name: str, viewers: int, refreshing: bool, seconds: float) -> Watching:
    counted = _Counted()
    timeout = aiohttp.ClientTimeout(total=60.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        house.url, cookies=house.cookies, timeout=timeout, connector=connector, cookie_jar=_jar()
    ) as session:
        tasks = []
        for number in range(viewers):
            socket, parts = WATCHED[number % len(WATCHED)]
            tasks.append(asyncio.create_task(_follow(session, house.url, socket, counted)))
            if refreshing:
                tasks += [asyncio.create_task(_refresh(session, path, every, counted)) for path, every in parts.items()]
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
    return aiohttp.CookieJar(unsafe=True)  # for an address without a name


async def _idle(tasks: "list[asyncio.Task[None]]", seconds: float) -> None:
    """Wait; what ends a viewer before its time is raised."""
    if not tasks:
        await asyncio.sleep(seconds)
        return
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
        raise RuntimeError("a WebSocket was closed by the dashboard")


async def _follow(session: aiohttp.ClientSession, origin: str, path: str, counted: _Counted) -> None:
    async with session.ws_connect(path, headers={"Origin": origin}) as socket:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                counted.messages += 1


async def _refresh(session: aiohttp.ClientSession, path: str, every: float, counted: _Counted) -> None:
    """Ask for a part as htmx does."""
    while True:
        await asyncio.sleep(every)
        async with session.get(path, headers=HTMX) as answer:
            await answer.read()
            answer.raise_for_status()
        counted.parts += 1
