"""Both sides of a rollout together: services, `watch`, and a real server that shares the requests; all of them killed in
between."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_load
from dashboard.configuration.drift import drift_check, model_adopt
from dashboard.metrics.recent import recent_numbers
from dashboard.metrics.selectors import metrics_range
from dashboard.models import MetricSample, Model, Rollout, Server, ServerEvent
from dashboard.releases.selectors import newest_release, serving_release
from dashboard.rollouts import figures, selectors
from dashboard.rollouts.selectors import history, standing
from dashboard.rollouts.services import mismatches_forget, rollout_abort, rollout_advance, rollout_start
from dashboard.watch import rollout_watch
from dashboard.watch.together import Together
from dashboard.watch.watcher import watch_server
from repository.config.document import Document
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import FixedServer, fixed_server
from tests.dashboard.watch.test_watch import until
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess

pytestmark = [pytest.mark.django_db, pytest.mark.long]

FIRST_ALONE = "version_policy { specific { versions: [1] } }"
Phase = tuple[Callable[[], object], Callable[[], object]]


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        yield server


@pytest.fixture
def start(inference: FixedServer, tmp_path: Path) -> Callable[[], ServerProcess]:
    def start() -> ServerProcess:
        return inference.start(f"--traffic-state={tmp_path / 'traffic.json'}")

    return start


class Clients:
    """Requests that name no version, one after the other, for as long as the block lasts."""

    def __init__(self, url: str, request: dict[str, object]) -> None:
        self._url, self._request = url, request
        self._stop = Event()
        self.answers: Counter[str] = Counter()  # by the version that answered, "" for what failed
        self.failures: Counter[int] = Counter()  # by status

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=PATIENCE_S) as client:
            while not self._stop.wait(0.005):
                try:
                    answer = client.post(self._url, json=self._request)
                except httpx.TransportError:  # the server is being killed, or starts
                    self._stop.wait(0.05)
                    continue
                if answer.is_success:
                    self.answers[answer.json()["model_version"]] += 1
                else:
                    self.failures[answer.status_code] += 1


def clients_of(server: Server, name: str, tensor: str, values: list[float]) -> Clients:
    data = {"name": tensor, "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return Clients(f"{server.http_url}/v2/models/{name}/infer", {"inputs": [data]})


def watching(server: Server, *phases: Phase) -> None:
    """Run all that `watch` does for a server; in each phase do something, then wait for its condition."""

    async def scenario() -> None:
        running = asyncio.create_task(watch_server(server, Together()))
        try:
            for act, condition in phases:
                apart = act.__name__ in ("start", "kill")
                await (asyncio.to_thread(act) if apart else sync_to_async(act)())
                await until(lambda condition=condition: bool(condition()), running)  # type: ignore[misc]
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()


def report(server: Server, place: str) -> Any:
    """What the server itself says of a model's rollout, such as "scale/traffic"; {} while it does not answer."""
    key = {settings.SERVER_CONTROL_HEADER: settings.SERVER_CONTROL_KEY}
    try:
        return httpx.get(f"{server.http_url}/v2/slipway/models/{place}", headers=key, timeout=PATIENCE_S).json()
    except (httpx.TransportError, ValueError):
        return {}


def nothing() -> None:
    pass


def test_a_shadow_finds_what_differs_and_a_canary_comes_through_kills_to_its_end(
    inference: FixedServer,
    start: Callable[[], ServerProcess],
    tmp_path: Path,
    actor: Actor,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(figures, "FIRST_EVERY_S", 1)
    monkeypatch.setattr(rollout_watch, "MISMATCHES_S", 0.2)
    for version, factor in ((1, 2.0), (2, 3.0)):
        model_factory.onnx_scale(tmp_path / "models", factor=factor, version=version, extra=FIRST_ALONE)
    model = model_load(model=model_adopt(name="scale", actor=actor), actor=actor)
    server = inference.row()
    clients = clients_of(server, "scale", "INPUT0", [1])
    shadow = rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan={"shadow": {"share": 100}})

    def compared() -> bool:
        found = standing(shadow).shadow
        return found is not None and found.disagreed > 0 and selectors.mismatches(shadow).exists()

    with clients.asking():
        watching(server, (start, compared))
    worst = selectors.mismatches(shadow).defer(None)[0]
    assert [worst.data[side][0]["data"] for side in ("inputs", "stable", "candidate")] == [[1], [2], [3]]  # type: ignore[call-overload,index]
    assert set(clients.answers) == {"1"}
    assert report(server, "scale/traffic/mismatches")
    mismatches_forget(rollout=shadow, actor=actor)
    watching(server, (nothing, lambda: not report(server, "scale/traffic/mismatches")))
    rollout_abort(rollout=shadow, actor=actor)
    plan = {
        "steps": [{"weight": 30, "bake_s": 3600}, {"weight": 60, "bake_s": 0.2}],
        "guardrails": [{"metric": "errors"}],
        "min_samples": 20,
        "hold_days": 1e-5,
    }
    rollout = rollout_start(model=model, actor=actor, candidate=2, plan=plan)
    first = newest_release(model)
    clients = clients_of(server, "scale", "INPUT0", [1])

    def kill() -> None:
        inference.kill()

    def both_answer() -> bool:
        return serving_release(model) == first and clients.answers.keys() == {"1", "2"}

    with clients.asking():
        watching(server, (nothing, both_answer), (nothing, lambda: standing(rollout).arms))
        kill()  # the server, after `watch`
        before = clients.answers.total()
        watching(server, (start, lambda: report(server, "scale/traffic").get("weight") == 30))
        assert report(server, "scale/traffic")["release"] == first.number
        watching(server, (nothing, lambda: sum(arm.requests for arm in standing(rollout).arms) > before))
        rollout_advance(rollout=rollout, actor=actor)
        watching(server, (nothing, lambda: Rollout.objects.get(pk=rollout.pk).state == "done"))
        newest = newest_release(model)
        watching(server, (nothing, lambda: serving_release(model) == newest))
    assert set(clients.failures) <= {503, 404}, "but for the time in which the server had not loaded yet"
    assert newest.versions == [2]
    assert "Version 1 was unloaded; its last request was at 20" in Rollout.objects.get(pk=rollout.pk).reason
    assert history(rollout)["times"]
    assert report(server, "scale/traffic")["rollout"] is None
    assert drift_check() == []


def test_a_candidate_that_fails_is_taken_out_and_stays_out_whoever_is_killed(
    inference: FixedServer, start: Callable[[], ServerProcess], tmp_path: Path, actor: Actor
):
    model_factory.python_scale(tmp_path / "models", extra=FIRST_ALONE)
    broken = """
        class TritonPythonModel:
            def execute(self, requests):
                raise RuntimeError("its weights are gone")
    """
    model_factory.python_model(tmp_path / "models", "scale", broken, version=2)
    model: Model = model_load(model=model_adopt(name="scale", actor=actor), actor=actor)
    server, before = inference.row(), newest_release(model)
    watching(server, (start, lambda: serving_release(model)))
    plan = {"steps": [{"weight": 50}], "guardrails": [{"metric": "errors"}], "min_samples": 20, "window_s": 60}
    rollout = rollout_start(model=model, actor=actor, candidate=2, plan=plan)
    first = newest_release(model)
    clients = clients_of(server, "scale", "INPUT0", [1])

    def breached() -> object:
        return report(server, "scale/traffic").get("breach")

    with clients.asking():
        watching(server, (nothing, lambda: serving_release(model) == first))
    with clients_of(server, "scale", "INPUT0", [1]).asking():
        async_to_sync(_until)(breached)  # nobody watches: the server takes it out by itself
    inference.kill()
    start()
    assert Rollout.objects.get().state == "running"
    watching(server, (nothing, lambda: Rollout.objects.get().state == "rolled_back"))
    back = Rollout.objects.get()
    assert "requests failed" in back.reason
    assert ServerEvent.objects.get(kind="breached").message == f"Version 2 of scale was taken out: {back.reason}"
    newest = newest_release(model)
    watching(server, (nothing, lambda: serving_release(model) == newest))
    assert (newest.versions, newest.traffic, newest.rollout) == ([1], {}, rollout)
    assert Document.read(newest.text).text == Document.read(before.text).text
    again = clients_of(server, "scale", "INPUT0", [1])
    with again.asking():
        async_to_sync(_until)(lambda: again.answers.total() >= 20)
    assert (set(again.answers), again.failures.total()) == ({"1"}, 0)


async def _until(condition: Callable[[], object]) -> None:
    await until(lambda: bool(condition()), asyncio.create_task(asyncio.sleep(3600)))


def test_copies_for_a_shadow_are_no_requests_of_clients(
    inference: FixedServer,
    start: Callable[[], ServerProcess],
    tmp_path: Path,
    actor: Actor,
    as_person: Callable[..., Client],
):
    """Neither in statistics and Prometheus' counters nor in history, tiles and charts; what is only mirrored is not live."""
    for version, factor in ((1, 2.0), (2, 3.0)):
        model_factory.onnx_scale(tmp_path / "models", factor=factor, version=version, extra=FIRST_ALONE)
    model = model_load(model=model_adopt(name="scale", actor=actor), actor=actor)
    server, sent = inference.row(), 0
    plan = {"shadow": {"share": 100, "max_in_flight": 64}, "guardrails": []}
    shadow = rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan=plan)
    page = as_person()

    def send() -> None:
        nonlocal sent
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
        for _ in range(40):
            sent += httpx.post(f"{server.http_url}/v2/models/scale/infer", json=body, timeout=PATIENCE_S).is_success

    def asked() -> dict[str, Any]:
        since, now = time.time() - 600, time.time() + 10
        series = metrics_range(servers=[server], start=since, end=now)["series"]
        step = metrics_range(servers=[server], start=since, end=now)["step"]
        return {name: round(step * sum(one or 0 for one in series[name])) for name in ("rps", "mirrored")}

    watching(
        server,
        # What the feed tells first only says where counters stand: requests before that are in no history.
        (start, lambda: report(server, "scale/traffic").get("shadow") and MetricSample.objects.exists()),
        (send, lambda: (standing(shadow).shadow or 0) and standing(shadow).shadow.compared >= 20),
        (nothing, lambda: asked()["rps"] == sent and asked()["mirrored"] >= 20),
    )
    rows = httpx.get(f"{server.http_url}/v2/models/scale/stats", timeout=PATIENCE_S).json()["model_stats"]
    counted = {row["version"]: row["inference_stats"]["success"]["count"] for row in rows}
    worked = {row["version"]: row["execution_count"] for row in rows}
    assert (counted["1"], counted.get("2", 0)) == (sent, 0)
    assert worked["2"] >= 20, "it is work of that version all the same"
    metrics = httpx.get(f"{server.metrics_url}/metrics", timeout=PATIENCE_S).text
    assert f'nv_inference_request_success{{model="scale",version="1"}} {sent}' in metrics
    assert recent_numbers(["scale"])["scale"].rps is not None
    head = text_of(page, "/models/scale/")
    assert re.search(r"Version <b>1</b> live", head)
    assert "Versions <b>1, 2</b>" not in head
    assert 'class="tag live">live' in text_of(page, "/models/scale/versions")
    assert text_of(page, "/models/scale/versions").count('class="tag live">live') == 1
    releases = text_of(page, "/models/scale/releases/")
    assert "Version 2 is asked in the shadow, and answers nobody" in releases
    assert ">version 2</a>" not in releases[releases.index("Live now") :][:600]
