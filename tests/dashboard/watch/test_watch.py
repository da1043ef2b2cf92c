"""`watch` brings a real server to what the database asks for, and writes down what it finds."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings
from django.db import connection
from django.db.models import F
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.configuration.drift import drift_adopt
from dashboard.metrics.feed import FeedReader
from dashboard.metrics.selectors import metrics_range
from dashboard.models import (
    MetricSample,
    Model,
    ModelState,
    ModelSync,
    ReleaseCheck,
    ReleaseSpan,
    Server,
    ServerEvent,
    ServerState,
    Version,
)
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.messages import IndexRow
from dashboard.servers.server_state import Report
from dashboard.shared.choices import DesiredState, EventKind, ServerStatus
from dashboard.watch import reconciler, watcher
from dashboard.watch.reconciler import Reconciler
from dashboard.watch.together import Together
from tests.dashboard.processes import FixedServer, fixed_server, server_client
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.long]

Phase = tuple[Callable[[], object], Callable[[], bool]]


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        yield server


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "models"


def nothing() -> None:
    pass


def watch(server: Server, *phases: Phase, together: Together | None = None) -> None:
    """Run a reconciler; in each phase do something, then wait for its condition."""

    async def scenario() -> None:
        async with AsyncServerClient(server) as client:
            running = asyncio.create_task(Reconciler(server, client, FeedReader(), together).run())
            try:
                for act, condition in phases:
                    await asyncio.to_thread(act) if act.__name__ in ("start", "kill") else await sync_to_async(act)()
                    await until(condition, running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()


async def until(condition: Callable[[], bool], running: "asyncio.Task[None]") -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await sync_to_async(condition)():
            if running.done():
                running.result()
            await asyncio.sleep(0.05)


def want(name: str, state: str = DesiredState.LOADED) -> Model:
    return Model.objects.create(name=name, desired_state=state, generation=1)


def states() -> dict[tuple[str, int], str]:
    return {(row.model_name, row.version): row.state for row in ModelState.objects.all()}


def ready(*names: str) -> Callable[[], bool]:
    return lambda: {name for (name, _), state in states().items() if state == "READY"} == set(names)


def server_ready(server: Server) -> bool:
    return ServerState.objects.get(server=server).state == ServerStatus.READY


def events(kind: str) -> list[tuple[str, str]]:
    return list(ServerEvent.objects.filter(kind=kind).order_by("id").values_list("model_name", "message"))


def test_wanted_models_are_loaded_and_others_left_alone(inference: FixedServer, repository: Path):
    for name in ("wanted", "unwanted", "unmanaged"):
        model_factory.onnx_identity(repository, name)
    model = want("wanted")
    want("unwanted", DesiredState.UNLOADED)
    server = inference.row()
    watch(server, (inference.start, lambda: ready("wanted")() and server_ready(server)))
    sync = ModelSync.objects.get(model=model)
    assert (sync.applied_generation, sync.error, sync.attempts) == (1, "", 0)
    assert [name for name, _ in events(EventKind.MODEL_LOADED)] == ["wanted"]


def test_what_is_published_while_the_server_is_down_loads_when_it_is_back(inference: FixedServer, repository: Path):
    server = inference.row()

    def publish() -> None:
        model_factory.onnx_identity(repository, "late")
        want("late")

    def seen_down() -> bool:
        return ServerState.objects.get(server=server).checked_at is not None

    watch(server, (publish, seen_down), (inference.start, ready("late")))


def test_every_model_returns_after_the_server_was_killed(inference: FixedServer, repository: Path):
    names = ("a", "b", "c")
    for name in names:
        model_factory.onnx_identity(repository, name)
        want(name)
    server = inference.row()

    def known_as_down() -> bool:
        down = ServerState.objects.get(server=server).state == ServerStatus.DOWN
        return down and set(states().values()) == {"UNAVAILABLE"}

    watch(
        server,
        (inference.start, lambda: server_ready(server) and len(events(EventKind.MODEL_LOADED)) == len(names)),
        (inference.kill, known_as_down),
        (inference.start, lambda: ready(*names)() and bool(events(EventKind.READY))),
    )
    assert events(EventKind.READY) == [("", "Every model is loaded again.")]
    assert len(events(EventKind.MODEL_LOADED)) == len(names)


def test_a_new_generation_is_loaded_and_an_unload_follows_the_wish(inference: FixedServer, repository: Path):
    model_factory.onnx_identity(repository, "changing")
    model = want("changing")
    server = inference.row()

    def publish_second_version() -> None:
        model_factory.onnx_identity(repository, "changing", version=2)
        Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1)

    def unload() -> None:
        Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1, desired_state=DesiredState.UNLOADED)

    watch(
        server,
        (inference.start, lambda: states().get(("changing", 1)) == "READY"),
        (publish_second_version, lambda: states().get(("changing", 2)) == "READY"),
        (unload, lambda: "READY" not in states().values() and bool(events(EventKind.MODEL_UNLOADED))),
    )
    assert [name for name, _ in events(EventKind.MODEL_UNLOADED)] == ["changing"]


def test_a_failing_load_is_reported_whole_and_disturbs_no_other(inference: FixedServer, repository: Path):
    model_factory.onnx_identity(repository, "fine")
    broken = model_factory.onnx_identity(repository, "broken")
    (broken / "1" / "model.onnx").write_text("this is no model")
    want("fine")
    model = want("broken")
    server = inference.row()

    def retried() -> bool:
        return ModelSync.objects.filter(model=model, attempts__gte=2).exists()

    def repair() -> None:
        model_factory.onnx_identity(repository, "broken")
        Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1)

    failed: list[str] = []

    def remember() -> None:
        failed.append(ModelSync.objects.get(model=model).error)

    watch(
        server,
        (inference.start, lambda: ready("fine")() and retried() and server_ready(server)),
        (remember, lambda: True),
        (repair, ready("fine", "broken")),
    )
    assert "model.onnx" in failed[0] or "ONNX" in failed[0]
    assert events(EventKind.MODEL_FAILED) == [("broken", f"Model broken failed: {failed[0]}")]
    assert ModelSync.objects.get(model=model).error == ""


def test_what_was_changed_by_hand_is_not_loaded_before_somebody_adopts_it(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    version = published(load=True)
    model, folder = version.model, Path(settings.MODEL_REPOSITORY, version.model.name)
    server = inference.row()

    def edit_by_hand() -> None:
        shutil.copytree(folder / "1", folder / "2")
        text = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(text.replace("max_batch_size: 8", "max_batch_size: 3"))
        inference.kill()
        inference.start()

    def largest_batch() -> int:
        """The server's own figure; 0 while it does not answer."""
        try:
            answer = httpx.get(f"{server.http_url}/v2/models/{model.name}/config", timeout=PATIENCE_S)
        except httpx.HTTPError:
            return 0
        return answer.json()["max_batch_size"] if answer.is_success else 0

    def adopt() -> None:
        drift_adopt(model=model, actor=actor)

    sizes: list[int] = []
    watch(
        server,
        (inference.start, ready(model.name)),
        (edit_by_hand, lambda: largest_batch() > 0),
        (lambda: sizes.append(largest_batch()), lambda: ("relu", 2) not in states()),
        (adopt, lambda: states().get(("relu", 2)) == "READY"),
    )
    assert [*sizes, largest_batch()] == [8, 3]


def test_what_models_do_becomes_history_also_on_a_server_that_came_later(
    inference: FixedServer, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(watcher, "SERVERS_S", 0.1)
    model_factory.onnx_identity(repository, "busy", dims=[1])
    want("busy")
    first = Server.objects.create(
        name="gone", http_url="http://127.0.0.1:1", grpc_url="", metrics_url="http://127.0.0.1:1"
    )
    inference.start()
    body = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}'

    began = time.time() - 1

    def known() -> int:
        """Requests that history knows of."""
        server = Server.objects.get(bundled=True)
        found = metrics_range(servers=[server], start=began, end=time.time() + 1, model_name="busy")
        return sum(found["batches"].values())

    async def scenario() -> None:
        watching = asyncio.create_task(watcher.watch_servers())
        try:
            await until(lambda: ServerEvent.objects.filter(server=first).exists(), watching)
            server = await sync_to_async(inference.row)()
            await first.adelete()
            await until(lambda: MetricSample.objects.exists() and ready("busy")(), watching)
            for _ in range(20):
                await asyncio.to_thread(server_client(server).infer_raw, "busy", body, {})
            await until(lambda: known() == 20, watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async_to_sync(scenario)()
    assert ServerState.objects.get().instance


def test_a_watcher_that_comes_back_finds_everything_in_step(inference: FixedServer, repository: Path):
    model_factory.onnx_identity(repository, "steady")
    want("steady")
    server = inference.row()
    watch(server, (inference.start, lambda: ready("steady")() and server_ready(server)))
    ServerState.objects.filter(server=server).update(state=ServerStatus.RUNNING)
    watch(server, (nothing, lambda: server_ready(server)))
    assert len(events(EventKind.MODEL_LOADED)) == 1


class Noting(Together):
    """Notes the models of each report, None for all."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[list[str] | None] = []

    async def do(self, work: Callable[[list[Any]], None], item: Any, pause: float = 0.0) -> None:
        if isinstance(item, Report):
            self.reports.append(None if item.models is None else sorted(item.models))
        await super().do(work, item, pause)


def test_what_a_server_has_of_many_models_is_recorded_in_parts(
    inference: FixedServer, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    """The one thread of the database does other work between two of them."""
    names = ("a", "b", "c", "d", "e")
    for name in names:
        model_factory.onnx_identity(repository, name)
        want(name)
    server = inference.row()
    watch(server, (inference.start, lambda: ready(*names)() and server_ready(server)))
    monkeypatch.setattr(reconciler, "RECORDED_MOST", 2)
    noting = Noting()

    def forget() -> None:
        ModelState.objects.filter(model_name__in=names).delete()
        ModelState.objects.create(server=server, model_name="gone", version=1, state="READY")

    def unload() -> None:
        Model.objects.update(desired_state=DesiredState.UNLOADED, generation=F("generation") + 1)

    forget()
    watch(server, (nothing, ready(*names)), (unload, ready()), together=noting)
    assert noting.reports[:3] == [["a", "b"], ["c", "d"], None], "the last one is about all, so that what is gone goes"
    assert {len(models) for models in noting.reports[3:] if models is not None} <= {1, 2}
    assert None not in noting.reports[3:]


def test_the_index_of_a_server_is_read_again_only_when_its_feed_tells_of_a_change(
    inference: FixedServer, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(reconciler, "FED_INTERVAL_S", 3600.0)
    for name in ("wanted", "by_hand"):
        model_factory.onnx_identity(repository, name)
    want("wanted")
    server = inference.row()
    read_at: list[float] = []
    index = AsyncServerClient.index

    async def noted(client: AsyncServerClient) -> list[IndexRow]:
        read_at.append(time.time())
        return await index(client)

    monkeypatch.setattr(AsyncServerClient, "index", noted)

    def told_since() -> bool:
        """Whether the feed has told three seconds since the last index."""
        return MetricSample.objects.filter(resolution=1, model_name="", at__gt=read_at[-1] + 1).count() >= 3

    def load_by_hand() -> None:
        server_client(server).load("by_hand")

    async def scenario() -> None:
        running = asyncio.create_task(watcher.watch_servers())
        try:
            await sync_to_async(inference.start)()
            await until(lambda: ready("wanted")() and server_ready(server) and told_since(), running)
            await asyncio.to_thread(load_by_hand)
            await until(lambda: ready("wanted", "by_hand")() and told_since(), running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()


def test_models_return_though_the_database_takes_nothing(inference: FixedServer, repository: Path, actor: Actor):
    """A full disk, say: what serves matters more than what is known of it."""
    model_factory.onnx_identity(repository, "steady")
    drift_adopt(model=want("steady"), actor=actor)
    server = inference.row()
    inference.start()
    watch(server, (nothing, lambda: ready("steady")() and server_ready(server)))
    inference.kill()
    inference.start()
    tables = (ModelSync, ReleaseCheck)
    with connection.cursor() as cursor:
        for table in (model._meta.db_table for model in tables):
            cursor.execute(
                f"CREATE TRIGGER full_{table} BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
            )
        ready_at = f"{server.http_url}/v2/models/steady/ready"
        watch(server, (nothing, lambda: httpx.get(ready_at, timeout=PATIENCE_S).is_success))
        for model in tables:
            cursor.execute(f"DROP TRIGGER full_{model._meta.db_table}")


def test_what_served_while_nobody_looked_is_not_known(inference: FixedServer, repository: Path, actor: Actor):
    """The machine was off, or slept, or its clock was set: the span ends with the last look before, and another begins."""
    model_factory.onnx_identity(repository, "steady")
    drift_adopt(model=(model := want("steady")), actor=actor)
    server = inference.row()
    serves = ReleaseSpan.objects.filter(model=model, ended_at=None)
    watch(server, (inference.start, lambda: serves.exists() and server_ready(server)))
    hour = timedelta(hours=1)
    before = serves.get()
    serves.update(started_at=F("started_at") - 2 * hour)
    ServerState.objects.update(checked_at=(seen := timezone.now() - hour))
    watch(server, (nothing, lambda: serves.exclude(pk=before.pk).exists()))
    before.refresh_from_db()
    assert before.ended_at == seen
    ServerState.objects.update(checked_at=timezone.now() + hour)  # the clock is set back
    watch(server, (nothing, lambda: ReleaseSpan.objects.count() == 3))
