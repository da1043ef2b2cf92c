"""Measures how soon people are told: faults are planted in a running installation, until the messages arrive on loopback.

A whole `manage.py up` with its own data folder, a webhook and an SMTP server that note when a message arrives.

    python -m benchmarks.alerts_told [--rounds 3] [--write]
"""

import argparse
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tests.support.alert_sinks import Sinks
from tests.support.rollout_house import MODEL, RolloutHouse
from tests.support.serving_process import kill_and_wait, wait_until

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
MARKS = re.compile(r"(<!-- told -->\n).*?(<!-- end of told -->)", re.DOTALL)
LONGEST_S = 180.0


class Told(NamedTuple):
    """Seconds from the fault to the message by webhook and by e-mail."""

    webhook: float
    mail: float


class Fault(NamedTuple):
    """plant: a context in which the fault lasts; it yields the time at which it began. title: of its alert."""

    name: str
    title: str
    plant: Callable[[RolloutHouse], Iterator[float]]


def burning(house: RolloutHouse) -> Iterator[float]:
    with house.asking():
        wait_until(lambda: house.answers["1"] > 200, what="traffic")
        began = time.time()
        house.misbehave(1, "fails")
        yield began
        house.misbehave(1, "fails", False)


def stopped(part: str) -> Callable[[RolloutHouse], Iterator[float]]:
    def plant(house: RolloutHouse) -> Iterator[float]:
        pid = house.hang(part)
        yield time.time()
        os.kill(pid, signal.SIGCONT)

    return plant


def failed_release(house: RolloutHouse) -> Iterator[float]:
    """A release with version 2 is wanted, whose source has a mistake; the release before it serves on."""
    with broken(house, 2):
        began = time.time()
        house.call("PUT", f"models/{MODEL}/config", json={"text": config(house, "1, 2")})
        yield began
    house.call("PUT", f"models/{MODEL}/config", json={"text": config(house, "1")})


def failed_load(house: RolloutHouse) -> Iterator[float]:
    """The process of a version ends, and its source has a mistake by now; the other version serves on."""
    house.call("PUT", f"models/{MODEL}/config", json={"text": config(house, "1, 2")})
    house.holds()
    with broken(house, 2):
        began = time.time()
        kill_and_wait(house.process_of(2))
        yield began
    house.call("PUT", f"models/{MODEL}/config", json={"text": config(house, "1")})


def not_ready(house: RolloutHouse) -> Iterator[float]:
    """The only version has a mistake, and its process is started again."""
    with broken(house, 1):
        house.call("POST", f"models/{MODEL}/unload")
        wait_until(lambda: house.serving() is None, what="it is unloaded")
        began = time.time()
        house.call("POST", f"models/{MODEL}/load")
        yield began
    house.call("POST", f"models/{MODEL}/load")


def crashes(house: RolloutHouse) -> Iterator[float]:
    """The inference server is killed three times; the time counts from the third."""
    for _ in range(3):
        pid = wait_until(lambda: house.pid("server"), what="the server runs")
        kill_and_wait(pid)
        began = time.time()
        wait_until(lambda killed=pid: house.pid("server") not in (0, killed), what="another server")
    yield began


@contextmanager
def broken(house: RolloutHouse, version: int) -> Iterator[None]:
    path = house.up.data / "models" / MODEL / str(version) / "model.py"
    text = path.read_text()
    path.write_text("raise RuntimeError('its weights are gone')\n")
    try:
        yield
    finally:
        path.write_text(text)


def config(house: RolloutHouse, versions: str) -> str:
    return re.sub(r"versions: \[?[\d, ]+\]?", f"versions: [{versions}]", house.text())


FAULTS = (
    Fault("all requests of a model fail", "spends its error budget", burning),
    Fault("a model does not load", "is not ready", not_ready),
    Fault("a new release does not load", "in place of release", failed_release),
    Fault("a version that served does not start again", "serves, but not as it should", failed_load),
    Fault("the server stops answering", "Server local does not answer", stopped("server")),
    Fault("the worker stops answering", "The worker does not answer", stopped("worker")),
    Fault("the watcher stops answering", "The watcher does not answer", stopped("watch")),
    Fault("the server crashes three times", "crashed", crashes),
)


def measure(house: RolloutHouse, sinks: Sinks, fault: Fault) -> Told:
    """Plant a fault, and wait until it was told and then resolved."""
    before = len(sinks.got(fault.title)), len([one for one in sinks.mails if fault.title in one.title])
    plant = contextmanager(fault.plant)
    with plant(house) as began:

        def new() -> tuple[float, ...]:
            posts = [one.at for one in sinks.got(fault.title)][before[0] :]
            mails = [one.at for one in sinks.mails if fault.title in one.title and one.what == "fired"]
            mails = [at for at in mails if at > began]
            return (posts[0], mails[0]) if posts and mails else ()

        posted, mailed = wait_until(new, LONGEST_S, f"{fault.name}: a message")
    return Told(posted - began, mailed - began)


def table(found: dict[str, list[Told]]) -> str:
    rows = [
        "| fault | times | webhook: least | median | longest | e-mail: longest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, times in found.items():
        posts = [one.webhook for one in times]
        figures = (
            f"{min(posts):.0f} s | {median(posts):.0f} s | {max(posts):.0f} s | {max(one.mail for one in times):.0f} s"
        )
        rows.append(f"| {name} | {len(times)} | {figures} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    parser.add_argument("--only", default="", help="faults whose names contain this")
    given = parser.parse_args()
    found: dict[str, list[Told]] = {}
    folder = tempfile.TemporaryDirectory()
    with Sinks() as sinks, folder as data, RolloutHouse(Path(data), "admin", **sinks.environment) as house:
        prepare(house, sinks)
        for number in range(given.rounds):
            for fault in FAULTS:
                if given.only in fault.name:
                    told = measure(house, sinks, fault)
                    found.setdefault(fault.name, []).append(told)
                    print(f"{number}: {fault.name}: {told.webhook:.1f} s, {told.mail:.1f} s", flush=True)
            wait_until(lambda: not firing(house), 900, "all is resolved")
    text = table(found)
    print(text)
    if given.write:
        PAGE.write_text(MARKS.sub(lambda mark: mark[1] + text + mark[2], PAGE.read_text()))


def prepare(house: RolloutHouse, sinks: Sinks) -> None:
    """Set an objective, and make the two channels."""
    house.call("PUT", f"models/{MODEL}/objective", json={"percent": 99.9})
    for kind, address in (("webhook", sinks.address), ("email", "oncall@example.org")):
        house.call("POST", "alerts/channels", json={"name": kind, "kind": kind, "address": address})


def firing(house: RolloutHouse) -> list[str]:
    return [one["title"] for one in house.call("GET", "alerts?state=firing")["results"]]


if __name__ == "__main__":
    main()
