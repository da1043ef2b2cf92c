"""Simulates 90 days of an installation of 200 models with planted faults of every kind of alert that is not about an objective.

The rows that the other processes write are written into a database of its own, and `alerts_evaluate` is called every three
seconds of simulated time around each event, and every six hours in between. Each kind has noise too: what looks like the fault,
but is over too soon, or is not enough. Simulated are the clock, heartbeats, and the readings of memory and disk.

    python -m benchmarks.alert_kinds [--days 90] [--models 200] [--each 10] [--write]
"""

import argparse
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
MARKS = re.compile(r"(<!-- kinds -->\n).*?(<!-- end of kinds -->)", re.DOTALL)
BEGIN = datetime(2026, 6, 1, tzinfo=UTC)
STEP_S = 3
QUIET_S = 6 * 3600  # between two evaluations while nothing happens
LONGEST_S = 1200  # a fault that was not told by then is not found


class House:
    """The rows of an installation of many models. now: the simulated time."""

    def __init__(self, models: int) -> None:
        from dashboard.models import Model, ModelState, Release, Version
        from dashboard.servers.services import server_ensure_local

        self.now = BEGIN
        self.heard: dict[str, float] = {}  # process -> seconds since it was heard
        self.memory, self.disk = 0.5, 0.5  # the share that is free
        self.server = server_ensure_local()
        self.server.state.__class__.objects.update(state="ready")
        for number in range(models):
            model = Model.objects.create(name=f"model{number}", desired_state="loaded")
            Version.objects.create(model=model, number=1, format="onnx")
            Release.objects.create(model=model, number=1, text="", sha256="", versions=[1])
            ModelState.objects.create(server=self.server, model_name=model.name, version=1, state="READY")
        self.serve()

    def serve(self) -> None:
        from dashboard.models import Release
        from dashboard.releases import life

        first = dict(Release.objects.filter(number=1).values_list("model", "pk"))
        life.serving(server=self.server, releases=first)

    def replace_readings(self) -> None:
        """Let the finders read this house instead of the machine."""
        from dashboard.alerts import machine
        from dashboard.shared import heartbeat

        total = 1 << 40
        machine.machine_memory = lambda *_: machine.Memory(int(self.memory * total), total)
        machine.disk_usage = lambda _: (total, 0, int(self.disk * total))
        heartbeat._known = lambda: [heartbeat.Process(name, "here", 1, 0, age) for name, age in self.heard.items()]


Event = Callable[
    [House, str], Iterator[None]
]  # changes rows until its first yield, and each step; ends when it is over


def _for(seconds: float) -> Iterator[None]:
    for _ in range(int(seconds / STEP_S)):
        yield


def failed(seconds: float, *, serves: bool) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.models import Model, ModelState, ModelSync

        states, model = ModelState.objects.filter(model_name=name), Model.objects.get(name=name)
        if not serves:
            states.update(state="UNAVAILABLE", reason="no memory", failed=True)
        ModelSync.objects.update_or_create(server=house.server, model=model, defaults={"error": "no memory"})
        yield from _for(seconds)
        states.update(state="READY", reason="", failed=False)
        ModelSync.objects.filter(model=model).update(error="")

    return event


def instead(seconds: float) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.models import Model, Release, Version

        model = Model.objects.get(name=name)
        number = model.releases.count() + 1
        Version.objects.get_or_create(model=model, number=number, defaults={"format": "onnx"})
        Release.objects.create(model=model, number=number, text="", sha256="", versions=[number])
        yield from failed(seconds, serves=True)(house, name)
        number += 1  # a person goes back
        Release.objects.create(model=model, number=number, text="", sha256="", versions=[1])
        newest = dict(Release.objects.order_by("number").values_list("model", "pk"))
        from dashboard.releases import life

        life.serving(server=house.server, releases=newest)

    return event


def crashing(gaps_s: list[float]) -> Event:
    def event(house: House, _: str) -> Iterator[None]:
        from dashboard.models import ServerEvent

        for gap in gaps_s:
            yield from _for(gap)
            ServerEvent.objects.create(server=house.server, kind="crashed", message="Killed.", at=house.now)
        yield from _for(900)

    return event


def down(seconds: float) -> Event:
    def event(house: House, _: str) -> Iterator[None]:
        from dashboard.models import ServerState

        ServerState.objects.update(state="down", last_reason="It does not answer.")
        yield from _for(seconds)
        ServerState.objects.update(state="ready")

    return event


def silent(process: str, seconds: float) -> Event:
    def event(house: House, _: str) -> Iterator[None]:
        for at in range(0, int(seconds), STEP_S):
            house.heard[process] = at
            yield
        house.heard[process] = 0

    return event


def share(what: str, value: float, seconds: float) -> Event:
    def event(house: House, _: str) -> Iterator[None]:
        setattr(house, what, value)
        yield from _for(seconds)
        setattr(house, what, 0.5)

    return event


def queue(pending: Callable[[int], int], seconds: int) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.metrics.samples import Sample, encode
        from dashboard.metrics.usage import Usage
        from dashboard.models import MetricSample

        begin = last = int(house.now.timestamp()) // 10 * 10
        while last - begin < seconds:
            for at in range(last, int(house.now.timestamp()) // 10 * 10, 10):
                data = encode(Sample(Usage(success=10, pending=pending(at - begin)).pack()))
                MetricSample.objects.create(
                    server=house.server, model_name=name, version=1, resolution=10, at=at, data=data
                )
                last = at + 10
            yield
        MetricSample.objects.all().delete()

    return event


def uneven(seconds: int) -> Event:
    """Two servers of an environment share 100 requests a second; one of them gets two thirds for so long."""

    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.metrics.samples import Sample, encode
        from dashboard.metrics.usage import Usage
        from dashboard.models import MetricSample, Server, ServerEnvironment, ServerState

        environment = ServerEnvironment.objects.create(name=name)
        at = {"http_url": "http://x", "grpc_url": "x", "metrics_url": "http://x", "environment": environment}
        several = [Server.objects.create(name=f"{name}-{number}", **at) for number in range(2)]
        for server in several:
            ServerState.objects.create(server=server, state="ready")
        begin = last = int(house.now.timestamp()) // 10 * 10
        while last - begin < seconds + 120:
            for start in range(last, int(house.now.timestamp()) // 10 * 10, 10):
                busiest = 667 if start - begin < seconds else 500
                for server, requests in zip(several, (busiest, 1000 - busiest), strict=True):
                    data = encode(Sample(Usage(success=requests).pack()))
                    row = {"model_name": "", "version": 0, "resolution": 10, "at": start, "data": data}
                    MetricSample.objects.create(server=server, **row)
                last = start + 10
            yield
        environment.delete()

    return event


def rolled_back(state: str, seconds: float) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.models import Model, Rollout

        given: dict[str, Any] = {"model": Model.objects.get(name=name), "kind": "canary", "stable": 1, "candidate": 2}
        given |= {"plan": {"steps": [], "guardrails": []}, "ended_at": house.now, "reason": "Too many errors."}
        count = Rollout.objects.count()
        Rollout.objects.create(name=f"r{count}", state=state, **given)
        yield from _for(seconds)
        Rollout.objects.create(name=f"r{count + 1}", state="done", **given)

    return event


def drifted(columns: int, seconds: float) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from dashboard.models import DriftMonitor, DriftWindow, Model

        monitor = DriftMonitor.objects.create(
            model=Model.objects.get(name=name), window=100, alpha=0.01, threshold=0.1, windows=1,
            drifted_since=house.now if columns else None,
        )  # fmt: skip
        DriftWindow.objects.create(
            monitor=monitor, number=1, first_at=house.now, last_at=house.now, requests=100, reference_requests=100,
            level=0.01, compared=7, drifted=columns,
            columns=[{"name": f"x[{at}]", "drifted": at < columns, "score": 1} for at in range(7)],
        )  # fmt: skip
        yield from _for(seconds)
        monitor.delete()

    return event


def ending(days: float, seconds: float) -> Event:
    def event(house: House, name: str) -> Iterator[None]:
        from django.contrib.auth.models import User

        from dashboard.models import ApiToken

        user, _ = User.objects.get_or_create(username="olga")
        until = house.now + timedelta(days=days)
        token = ApiToken.objects.create(user=user, name=name, hash=f"{name}{house.now}", rights=[], expires_at=until)
        yield from _for(seconds)
        token.delete()

    return event


class Kind(NamedTuple):
    """name: of the alert. fault: what must be told. noise: what must not be."""

    name: str
    fault: Event
    fault_words: str
    noise: Event
    noise_words: str


KINDS = (
    Kind("not_ready", failed(90, serves=False), "its load failed", failed(12, serves=False), "for 12 s"),
    Kind("load_failed", failed(90, serves=True), "a version fails", failed(12, serves=True), "for 12 s"),
    Kind("serves_instead", instead(90), "the wanted release fails", instead(12), "for 12 s"),
    Kind("crashes", crashing([0, 60, 60]), "3 in 2 min", crashing([0, 60, 900]), "3 in 16 min, 2 of them at once"),
    Kind("server_down", down(90), "no answer for 90 s", down(9), "for 9 s"),
    Kind("process_silent", silent("watch", 90), "`watch`, for 90 s", silent("watch", 12), "for 12 s"),
    Kind("process_silent", silent("worker", 90), "the worker, for 90 s", silent("worker", 12), "for 12 s"),
    Kind(
        "queue_grows",
        queue(lambda s: s // 3, 400),
        "20 more each minute",
        queue(lambda s: s % 120, 600),
        "bursts of 120 that are worked off",
    ),
    Kind("memory", share("memory", 0.03, 90), "3 % left for 90 s", share("memory", 0.03, 27), "for 27 s"),
    Kind("disk", share("disk", 0.001, 90), "0.1 % left for 90 s", share("disk", 0.001, 27), "for 27 s"),
    Kind("skew", uneven(420), "two thirds on one of two, for 7 min", uneven(200), "for 200 s"),
    Kind(
        "guardrail",
        rolled_back("rolled_back", 90),
        "a rollout is rolled back",
        rolled_back("aborted", 60),
        "a person ends a rollout",
    ),
    Kind("data_drift", drifted(3, 90), "3 of 7 columns", drifted(0, 60), "a window without drift"),
    Kind("ends_soon", ending(6.9, 90), "a token, in 6.9 days", ending(7.5, 60), "in 7.5 days"),
)


@dataclass
class Outcome:
    """delays: seconds from the begin of a fault to its alert, by the place of its kind. again: more alerts of a fault."""

    planted: Counter[int] = field(default_factory=Counter)
    noise: Counter[int] = field(default_factory=Counter)
    again: Counter[int] = field(default_factory=Counter)
    unresolved: Counter[int] = field(default_factory=Counter)
    delays: dict[int, list[float]] = field(default_factory=dict)
    false: list[str] = field(default_factory=list)
    evaluations: int = 0


def simulate(days: int, models: int, each: int) -> Outcome:
    """Plant everything, one event after another at random times, on random models. each: faults of a kind, and noise."""
    from dashboard.alerts.services import alerts_evaluate
    from dashboard.models import Alert

    chance, house, outcome = np.random.default_rng(0), House(models), Outcome()
    house.replace_readings()
    plan = [(place, fault) for place in range(len(KINDS)) for fault in (True, False) for _ in range(each)]
    begins = np.sort(chance.uniform(0, days * 86400 / len(plan) * 0.5, len(plan))) + np.arange(len(plan)) * (
        days * 86400 / len(plan) * 0.9
    )

    def look() -> None:
        outcome.evaluations += 1
        assert not (failed := alerts_evaluate(now=house.now)), failed

    def fired() -> dict[int, tuple[str, datetime]]:
        rows = Alert.objects.exclude(fired_at=None).values_list("pk", "kind", "fired_at")
        return {pk: (kind, at) for pk, kind, at in rows if at is not None}

    for begin, number in zip(begins, chance.permutation(len(plan)), strict=True):
        place, fault = plan[number]
        kind = KINDS[place]
        while house.now < BEGIN + timedelta(seconds=float(begin)):
            house.now += timedelta(seconds=QUIET_S)
            look()
        before, planted = fired(), house.now
        for _ in (kind.fault if fault else kind.noise)(house, f"model{chance.integers(models)}"):
            look()
            house.now += timedelta(seconds=STEP_S)
        for _ in _for(LONGEST_S):
            look()
            house.now += timedelta(seconds=STEP_S)
            if not Alert.objects.exclude(state="resolved").exists():
                break
        else:
            outcome.unresolved[place] += 1
        new = {pk: row for pk, row in fired().items() if pk not in before}
        own = sorted(at for name, at in new.values() if fault and name == kind.name)
        (outcome.planted if fault else outcome.noise)[place] += 1
        if own:
            outcome.delays.setdefault(place, []).append((own[0] - planted).total_seconds())
            outcome.again[place] += len(own) - 1
        others = [name for name, _ in new.values() if not (fault and name == kind.name)]
        outcome.false += [f"{name} after {kind.name}" for name in others]
    return outcome


def table(outcome: Outcome, days: int, models: int) -> str:
    from dashboard.alerts.table import BY_NAME

    rows = [
        f"{models} models, {days} days, {outcome.evaluations:,} evaluations of all kinds of alert, every {STEP_S} s around "
        f"{sum(outcome.planted.values())} planted faults and {sum(outcome.noise.values())} harmless events,",
        f"and every six hours in between. False alarms: **{len(outcome.false)}**.",
        "",
        "| alert | fault | planted | found | told again | seconds to the alert: least | median | longest | harmless | told |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for place, kind in enumerate(KINDS):
        delays = outcome.delays.get(place, [])
        times = f"{min(delays):.0f} | {median(delays):.0f} | {max(delays):.0f}" if delays else "– | – | –"
        told = sum(one.endswith(f" after {kind.name}") for one in outcome.false)
        counts = f"{outcome.planted[place]} | {len(delays)} | {outcome.again[place]} | {times}"
        harmless = f"{outcome.noise[place]}: {kind.noise_words}"
        rows.append(f"| {BY_NAME[kind.name].label} | {kind.fault_words} | {counts} | {harmless} | {told} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=90)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--each", type=int, default=10, help="faults of each kind, and as much noise")
    parser.add_argument("--write", action="store_true", help="write the table to docs/performance.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "dashboard.settings", "SLIPWAY_DATA": str(Path(folder) / "data")}
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        outcome = simulate(given.days, given.models, given.each)
        print(*outcome.false, sep="\n")
        print("not resolved:", dict(outcome.unresolved))
        text = table(outcome, given.days, given.models)
    print(text)
    if given.write:
        PAGE.write_text(MARKS.sub(lambda mark: mark[1] + text + mark[2], PAGE.read_text()))


if __name__ == "__main__":
    main()
