"""`watch` and a real server, which says itself which release serves; the last good one does while the wanted one fails."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.conf import settings

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.catalog.services import model_load, model_unload
from dashboard.configuration.drift import drift_check
from dashboard.configuration.services import config_apply
from dashboard.examples.services import example_create
from dashboard.metrics.feed import FeedReader
from dashboard.models import Model, ReleaseCheck, ReleaseSpan, Server, Version
from dashboard.releases.selectors import current_document, lives_of, releases, serving_release, way_back
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.choices import ReleaseState
from dashboard.shared.exceptions import DashboardError
from dashboard.versions.services import aliases_set, release_go_back, release_promote
from dashboard.watch.plan import Attempts
from dashboard.watch.reconciler import Reconciler
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG
from tests.dashboard.processes import FixedServer, fixed_server, server_client
from tests.dashboard.watch.test_watch import until, watch
from tests.support import model_factory

pytestmark = [pytest.mark.django_db, pytest.mark.long]


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        yield server


def spoil(number: int) -> Path:
    """Put what is no model in a version's place."""
    file = Path(settings.MODEL_REPOSITORY, "relu", str(number), "model.onnx")
    file.write_text("this is no model")
    return file


def reported(server: Server) -> dict[str, int]:
    """Which release the server itself says it serves, by version; nothing while it does not answer."""
    try:
        rows = server_client(server).index()
    except DashboardError:
        return {}
    return {row["version"]: row["release"] for row in rows if row.get("state") == "READY" and "release" in row}


def serves(model: Model, number: int) -> Callable[[], bool]:
    def holds() -> bool:
        release = serving_release(model)
        return release is not None and release.number == number

    return holds


def state_of(model: Model, number: int) -> ReleaseState:
    return lives_of([model.releases.get(number=number)])[0].state


def failed(model: Model, number: int) -> Callable[[], bool]:
    return lambda: state_of(model, number) == ReleaseState.FAILED


def test_the_last_good_release_serves_while_the_wanted_one_fails_whatever_is_restarted(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    model, server = published(load=True).model, inference.row()
    second = published()
    spoil(2)

    def promote() -> None:
        release_promote(version=second, actor=actor)

    def restart() -> None:
        inference.kill()
        inference.start()

    def one_again() -> bool:
        return list(reported(server)) == ["1"] and serves(model, 1)() and failed(model, 3)()

    watch(
        server,
        (inference.start, serves(model, 1)),
        (promote, failed(model, 3)),
        (lambda: None, one_again),
    )
    assert way_back(model).number == 1
    assert ReleaseSpan.objects.get(ended_at=None).release.number == 1
    watch(server, (restart, one_again))  # another `watch`, another server
    summary = model_summary(model)
    assert (summary.state, summary.wanted.number, summary.serving.number) == ("degraded", 3, 1)
    assert (summary.wanted_versions, summary.live_versions) == ([2], [1])
    assert "the file is text" in lives_of(releases(model))[0].error
    assert "versions: [2]" in current_document(model).text
    assert drift_check() == ["relu"]  # the spoilt file alone

    def go_back() -> None:
        release_go_back(model=model, actor=actor)

    watch(server, (go_back, serves(model, 4)))
    assert reported(server) == {"1": 4}
    assert [life.state for life in lives_of(releases(model))] == ["serving", "failed", "served"]


def test_the_wanted_release_takes_over_from_the_last_good_one_once_it_loads(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    model, server = published(load=True).model, inference.row()
    second = published()
    file = spoil(2)
    right = (file.parent.parent / "1" / "model.onnx").read_bytes()
    watch(
        server,
        (inference.start, serves(model, 1)),
        (lambda: release_promote(version=second, actor=actor), failed(model, 3)),
    )
    inference.kill()
    inference.start()
    watch(server, (lambda: None, lambda: list(reported(server)) == ["1"] and serves(model, 1)()))
    watch(server, (lambda: file.write_bytes(right), serves(model, 3)))
    assert reported(server) == {"2": 3}


def test_a_configuration_that_changes_nothing_else_is_another_release_without_a_reload(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    model, server = published(load=True).model, inference.row()
    text = CONFIG + "dynamic_batching { max_queue_delay_microseconds: 7 }\n"
    watch(
        server,
        (inference.start, serves(model, 1)),
        (lambda: config_apply(model=model, document=Document.read(text), actor=actor), serves(model, 2)),
        (inference.kill, lambda: serving_release(model) is None),
    )
    states = [life.state for life in lives_of(releases(model))]
    assert states == [ReleaseState.WANTED, ReleaseState.SERVED]
    steps = lives_of(releases(model))[0].check.steps
    assert "load" not in [step["step"] for step in steps]


def test_a_text_that_lost_its_stamp_gets_it_back_before_it_is_loaded(
    published: Callable[..., Version], inference: FixedServer
) -> None:
    """Releases of before there were stamps have none, and a person may have taken one away."""
    model = published(load=True).model
    on_disk = Path(settings.MODEL_REPOSITORY, "relu", "config.pbtxt")
    on_disk.write_text(Document.read(on_disk.read_text()).text)
    server = inference.row()
    watch(server, (inference.start, lambda: reported(server) == {"1": 1}))
    assert (on_disk.read_text(), drift_check()) == (releases(model).get().text, [])


def test_a_release_whose_golden_request_fails_leaves_the_old_one_serving(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    model, server = published(load=True).model, inference.row()
    second = published()
    node = model_factory.helper.make_node("Neg", ["x"], ["y"])
    tensors = [("x", "FP32", ["batch", 4])], [("y", "FP32", ["batch", 4])]
    file = Path(settings.MODEL_REPOSITORY, "relu", "2", "model.onnx")
    file.write_bytes(model_factory.onnx_bytes([node], *tensors))
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    expected = {"outputs": [{**x, "name": "y"}]}
    example_create(
        model=model, actor=actor, name="ones and more", request={"inputs": [x]}, expected=expected, golden=True
    )
    watch(
        server,
        (inference.start, serves(model, 1)),
        (lambda: release_promote(version=second, actor=actor), failed(model, 3)),
    )
    steps = {step["step"]: step for step in lives_of(releases(model))[0].check.steps}
    assert (list(steps)[-1], steps["golden"]["failed"]) == ("golden", True)
    [check] = steps["golden"]["checks"]
    assert (check["name"], check["version"], check["passed"]) == ("ones and more", 2, False)
    outcome = model.examples.get().outcome
    assert (outcome["passed"], outcome["release"], outcome["checked"]) == (False, 3, True)
    assert list(reported(server)) == ["1"]
    passed = lives_of(releases(model))[1].check
    assert (passed.state, passed.steps[-1]["step"]) == ("passed", "drain")


def test_a_load_that_finds_a_newer_release_says_nothing_of_the_one_that_failed(
    inference: FixedServer, published: Callable[..., Version], actor: Actor, monkeypatch: pytest.MonkeyPatch
):
    model, server, load = published(load=True).model, inference.row(), AsyncServerClient.load
    second, gone = published(), []
    spoil(2)

    async def late(client: AsyncServerClient, *given: str) -> object:
        if not gone:
            gone.append(await sync_to_async(release_go_back)(model=model, actor=actor))
        return await load(client, *given)

    watch(
        server,
        (inference.start, serves(model, 1)),
        (lambda: release_promote(version=second, actor=actor), failed(model, 3)),
        (lambda: monkeypatch.setattr(AsyncServerClient, "load", late), serves(model, 4)),
    )
    assert [life.state for life in lives_of(releases(model))][:2] == ["serving", "failed"]
    assert "the file is text" in lives_of(releases(model))[1].error


def test_a_load_that_fails_at_a_newer_release_is_not_charged_to_the_older_one(
    inference: FixedServer, published: Callable[..., Version], actor: Actor, monkeypatch: pytest.MonkeyPatch
):
    model, server, load = published(load=True).model, inference.row(), AsyncServerClient.load
    second, came = published(), []
    spoil(2)

    async def late(client: AsyncServerClient, *given: str) -> object:
        if not came:
            came.append(await sync_to_async(release_promote)(version=second, actor=actor))
        return await load(client, *given)

    def name_it() -> None:
        monkeypatch.setattr(AsyncServerClient, "load", late)
        aliases_set(model=model, aliases={"champion": 1}, actor=actor)

    watch(server, (inference.start, serves(model, 1)), (name_it, lambda: bool(came) and failed(model, 4)()))
    assert [life.state for life in lives_of(releases(model))][:3] == ["failed", "skipped", "serving"]
    assert lives_of(releases(model))[1].check is None
    assert "the file is text" in lives_of(releases(model))[0].error


def test_a_load_that_is_asked_for_during_a_retry_is_an_attempt_of_its_own(
    inference: FixedServer, published: Callable[..., Version], actor: Actor, monkeypatch: pytest.MonkeyPatch
):
    """What fails then had begun before, and does not count as an attempt of what was asked."""
    model, server = published(load=True).model, inference.row()
    load, index = AsyncServerClient.load, AsyncServerClient.index
    second, begun, looked = published(), [], asyncio.Event()
    spoil(2)

    def check_of_it() -> ReleaseCheck:
        return ReleaseCheck.objects.get(release__model=model, release__number=3)

    async def asked_meanwhile(client: AsyncServerClient, *given: str) -> object:
        if not begun:
            before = await sync_to_async(check_of_it)()
            await sync_to_async(model_load)(model=model, actor=actor)
            begun.append(before.started_at)
            await looked.wait()
        return await load(client, *given)

    async def seen(client: AsyncServerClient) -> object:
        if len(begun) == 1:
            begun.append(None)  # that look may have begun before it was asked for
        elif begun:
            looked.set()
        return await index(client)

    def fail_again() -> None:
        monkeypatch.setattr(AsyncServerClient, "load", asked_meanwhile)
        monkeypatch.setattr(AsyncServerClient, "index", seen)

    watch(
        server,
        (inference.start, serves(model, 1)),
        (lambda: release_promote(version=second, actor=actor), failed(model, 3)),
        (fail_again, lambda: bool(begun) and check_of_it().started_at > begun[0] and failed(model, 3)()),
    )


def test_the_last_good_release_serves_while_the_wanted_one_waits_for_a_person(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    """The wanted release has ended the server again and again."""
    model, server = published(load=True).model, inference.row()
    second = published()
    watch(server, (inference.start, serves(model, 1)))
    release_promote(version=second, actor=actor)
    model.refresh_from_db()
    inference.kill()
    inference.start()

    async def scenario() -> None:
        async with AsyncServerClient(server) as client:
            reconciler = Reconciler(server, client, FeedReader())
            reconciler._attempts["relu"] = Attempts(generation=model.generation, crashes=4, next_at=float("inf"))
            running = asyncio.create_task(reconciler.run())
            try:
                await until(lambda: list(reported(server)) == ["1"] and serves(model, 1)(), running)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()
    assert state_of(model, 3) == ReleaseState.WANTED


def test_what_was_unloaded_does_not_come_back_before_what_is_wanted(
    inference: FixedServer, published: Callable[..., Version], actor: Actor
):
    model, server = published(load=True).model, inference.row()
    second = published()
    watch(
        server,
        (inference.start, serves(model, 1)),
        (
            lambda: model_unload(model=model, actor=actor),
            lambda: not reported(server) and serving_release(model) is None,
        ),
        (lambda: release_promote(version=second, actor=actor), serves(model, 3)),
    )
    assert [span.release.number for span in ReleaseSpan.objects.all()] == [3, 1]
