"""Random publishing, editing, going back, failing loads, restarts and kills in any order, against a real server and `watch`.

What serves is always a release that can be served, whole, and the database and the page say which. Where the wanted one
cannot be served, one that served before does, as soon as there is a server and a `watch`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from dashboard.access.authorisation import Actor
from dashboard.catalog.selectors import model_summary
from dashboard.catalog.services import model_load, model_unload
from dashboard.configuration.services import config_apply
from dashboard.metrics.feed import FeedReader
from dashboard.models import Model, Release, Server, Upload, Version
from dashboard.releases.selectors import (
    current_document,
    last_good,
    lives_of,
    newest_release,
    releases,
    same_content,
    serving_release,
    texts,
    way_back,
)
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.choices import DesiredState, ReleaseState, VersionState
from dashboard.shared.exceptions import DashboardError
from dashboard.uploads.publication import upload_publish
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.services import aliases_set, release_go_back, release_promote
from dashboard.watch.reconciler import Reconciler
from repository.config.document import Document
from tests.dashboard.conftest import as_inspected
from tests.dashboard.processes import FixedServer, fixed_server, server_client
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.django_db, pytest.mark.long]

# The rule of the model file: a batch of rows of four, each number times the version's.
CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
MISFIT = "dims: [ 5 ]"  # no file has rows of five, which a server says when it loads
BATCHES = tuple(range(2, 9))
NAMES = ("champion", "candidate")

Act = tuple[str, int, bool]


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        yield server


class Story:
    """One model, what people and accidents do to it, and what is true of it whatever anybody says."""

    def __init__(self, name: str, server: Server, process: FixedServer, actor: Actor, received: Any) -> None:
        self.name, self.server, self.process, self.actor = name, server, process, actor
        self._received = received
        self.broken: set[int] = set()  # versions whose file is no model
        self.up = False
        self.watching: asyncio.Task[None] | None = None
        self.reported: list[str] = []  # what was done, for a failure's message

    # -- what is true ------------------------------------------------------------------------------------------------
    @property
    def model(self) -> Model | None:
        return Model.objects.filter(name=self.name).first()

    def servable(self, release: Release) -> bool:
        """Whether a server can serve a release: by its files and its text alone."""
        there = set(release.model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))
        fits = MISFIT not in release.text and bool(release.versions) and set(release.versions) <= there
        return fits and not self.broken & set(release.versions)

    def serving(self) -> dict[int, int]:
        """The release of each version that is ready, by the server's own word."""
        rows = [row for row in server_client(self.server).index() if row["name"] == self.name]
        return {int(row["version"]): row.get("release", 0) for row in rows if row.get("state") == "READY"}

    def check(self) -> None:
        """What holds at any moment."""
        model = self.model
        if model is None or not self.up:
            return
        with suppress(DashboardError):  # killed just now
            for version, number in self.serving().items():
                release = model.releases.get(number=number)
                assert self.servable(release), f"version {version} serves as release {number}, which cannot be served"
                assert version in release.versions, (
                    f"version {version} serves as release {number} of {release.versions}"
                )
        back, newest = way_back(model), newest_release(model)
        assert back is None or (back.spans.exists() and self.servable(back) and not same_content(back, newest))

    def is_as_wanted(self) -> bool:
        """Whether everything is as it should be at last, by the server, the database and the page alike."""
        model = self.model
        if model is None or not self.up or self.watching is None:
            return True
        try:
            serving = self.serving()
        except DashboardError:
            return False
        newest, said = newest_release(model), serving_release(model)
        wanted = newest.begun if newest else None
        summary = model_summary(model)
        if model.desired_state == DesiredState.UNLOADED or wanted is None:
            return not serving and said is None
        if self.servable(wanted):
            return self._is_one(serving, said, wanted) and summary.state == "ready" and summary.instead is None
        if lives_of([wanted])[0].state != ReleaseState.FAILED:
            return False
        if said is None:
            return not serving and not last_good(model) and summary.state in ("failed", "loading")
        right = self._is_one(serving, said, said) and summary.instead == said
        return right and summary.state == "degraded" and self.answers(said)

    def _is_one(self, serving: dict[int, int], said: Release | None, expected: Release) -> bool:
        begun = {row.begun for row in texts(expected.model).filter(number__in=serving.values())}
        whole = sorted(serving) == expected.versions and begun == {expected}
        return whole and said == expected and self.answers(expected)

    def answers(self, release: Release) -> bool:
        """Whether a request that names no version is answered by the one that should, and with its batch limit."""
        number = release.aliases.get("default", max(release.versions))
        request = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1]}]}
        answer = httpx.post(f"{self.server.http_url}/v2/models/{self.name}/infer", json=request, timeout=PATIENCE_S)
        config = httpx.get(f"{self.server.http_url}/v2/models/{self.name}/config", timeout=PATIENCE_S)
        limit = f"max_batch_size: {config.json()['max_batch_size']}\n" if config.is_success else "?"
        return answer.is_success and answer.json()["outputs"][0]["data"] == [number] * 4 and limit in release.text

    # -- what people do ------------------------------------------------------------------------------------------------
    def publish(self, pick: int, yes: bool) -> None:
        model = self.model
        number = (model.last_number if model else 0) + 1
        content = b"no model" if pick % 3 == 0 else self._file(number)
        upload = as_inspected(self._received({"model.onnx": content}, self.name), config=CONFIG)
        document, live = Document.read(CONFIG) if model is None else None, bool(pick % 2)
        before = list(releases(model)) if model else []
        serves = model is not None and model.desired_state == DesiredState.LOADED
        job = upload_publish(
            upload=upload, actor=self.actor, document=document, load=yes, make_live=live, base_release=None
        )
        assert job.state == "succeeded", job.error
        assert not serves or yes or live or list(releases(self.model)) == before, "a release that changes nothing"
        if pick % 3 == 0:
            self.broken.add(number)

    def _file(self, number: int) -> bytes:
        node = model_factory.helper.make_node("Mul", ["x", "k"], ["y"])
        tensor = [("x", "FP32", ["batch", 4])], [("y", "FP32", ["batch", 4])]
        return model_factory.onnx_bytes([node], *tensor, {"k": model_factory.np.array([number], "float32")})

    def edit(self, pick: int, yes: bool) -> None:
        model = self._there()
        lines = current_document(model).text.splitlines(keepends=True)
        batch = f"max_batch_size: {BATCHES[pick % len(BATCHES)]}\n"
        text = "".join(batch if line.startswith("max_batch_size") else line for line in lines)
        right, wrong = "dims: [ 4 ]", MISFIT
        text = text.replace(wrong, right) if yes else text.replace(right, wrong)
        config_apply(model=model, document=Document.read(text), actor=self.actor)

    def promote(self, pick: int, yes: bool) -> None:
        release_promote(version=self._version(pick), actor=self.actor, document=Document.read(CONFIG) if yes else None)

    def go_back(self, pick: int, yes: bool) -> None:
        rows = list(releases(self._there()))
        release_go_back(model=self._there(), actor=self.actor, release=None if yes else rows[pick % len(rows)])

    def name_versions(self, pick: int, yes: bool) -> None:
        aliases = {NAMES[pick % 2]: self._version(pick // 2).number} if yes else {}
        aliases_set(model=self._there(), aliases=aliases, actor=self.actor)

    def archive(self, pick: int, yes: bool) -> None:
        (version_restore if yes else version_archive)(version=self._version(pick), actor=self.actor)

    def load(self, pick: int, yes: bool) -> None:
        (model_load if yes else model_unload)(model=self._there(), actor=self.actor)

    def _there(self) -> Model:
        if self.model is None:
            raise DashboardError("there is no model yet")
        return self.model

    def _version(self, pick: int) -> Version:
        rows = list(self._there().versions.order_by("number"))
        return rows[pick % len(rows)]

    # -- what happens ----------------------------------------------------------------------------------------------------
    async def server_goes(self, client: AsyncServerClient) -> None:
        if self.up:
            self.up = False
            await asyncio.to_thread(self.process.kill)

    async def server_comes(self, client: AsyncServerClient) -> None:
        if not self.up:
            await asyncio.to_thread(self.process.start)
            self.up = True

    async def server_restarts(self, client: AsyncServerClient) -> None:
        await self.server_goes(client)
        await self.server_comes(client)

    async def watch_goes(self, client: AsyncServerClient) -> None:
        """End the process as a SIGKILL would: its work is left half done."""
        if self.watching is not None:
            self.watching.cancel()
            await asyncio.gather(self.watching, return_exceptions=True)
            self.watching = None

    async def watch_comes(self, client: AsyncServerClient) -> None:
        if self.watching is None:
            self.watching = asyncio.create_task(Reconciler(self.server, client, FeedReader()).run())


PEOPLE = ("publish", "publish", "edit", "promote", "go_back", "name_versions", "archive", "load")
ACCIDENTS = ("server_goes", "server_comes", "server_restarts", "server_restarts", "watch_goes", "watch_comes")
# What is picked: a good file, loaded and made live; a bad one, as well; a good one, only published; a configuration that no
# file fits; one that fits.
GOOD, BAD, ONLY, MISFITTING, FITTING = 1, 3, 20, 5, 2
ACTS = st.tuples(st.sampled_from(PEOPLE + ACCIDENTS), st.integers(0, 10_000), st.booleans())


async def tell(story: Story, acts: list[Act]) -> None:
    """Do these things, looking all the while; after each that says so, and at the end, wait until everything is in step."""
    async with AsyncServerClient(story.server) as client:
        for act in ("server_comes", "watch_comes"):
            await getattr(story, act)(client)
        try:
            for name, pick, wait in [*acts, ("server_comes", 0, False), ("watch_comes", 0, True)]:
                story.reported.append(f"{name}({pick}, {wait})")
                await _do(getattr(story, name), name, client, pick, wait)
                await _look(story, wait=wait and name not in ("server_goes", "watch_goes"))
        finally:
            await story.watch_goes(client)
            await story.server_goes(client)


async def _do(act: Callable[..., Any], name: str, client: AsyncServerClient, pick: int, yes: bool) -> None:
    if name in ACCIDENTS:
        did: Awaitable[None] = act(client)
        await did
        return
    with suppress(DashboardError):  # refused, which a person is told
        await sync_to_async(act)(pick, pick % 7 < 5)


async def _look(story: Story, *, wait: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if story.watching is not None and story.watching.done():
                story.watching.result()
            await sync_to_async(story.check)()
            if not wait or await sync_to_async(story.is_as_wanted)():
                return
            await asyncio.sleep(0.05)


@pytest.fixture
def tell_stories(inference: FixedServer, actor: Actor, received: Callable[..., Upload]) -> Callable[[list[Act]], None]:
    server, count = inference.row(), iter(range(1_000_000))

    def stories(acts: list[Act]) -> None:
        story = Story(f"story{next(count)}", server, inference, actor, received)
        try:
            async_to_sync(tell)(story, acts)
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{type(error).__name__} {error}\nafter {', '.join(story.reported)}") from error
        finally:
            Model.objects.all().delete()

    return stories


QUICK = settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@QUICK
@example(
    acts=[
        ("publish", GOOD, True),
        ("publish", BAD, True),
        ("server_restarts", 0, True),
        ("watch_goes", 0, False),
        ("server_restarts", 0, False),
        ("watch_comes", 0, True),
        ("publish", GOOD + 6, True),
    ]
)
@example(
    acts=[
        ("publish", GOOD, True),
        ("publish", ONLY, True),
        ("promote", 1, True),
        ("go_back", 0, True),
        ("server_restarts", 0, True),
    ]
)
@example(
    acts=[
        ("publish", GOOD, True),
        ("edit", MISFITTING, True),
        ("server_restarts", 0, True),
        ("edit", FITTING, True),
        ("edit", MISFITTING, False),
        ("server_restarts", 0, True),
        ("go_back", 0, True),
        ("server_restarts", 0, True),
    ]
)
@given(acts=st.lists(ACTS, min_size=8, max_size=14))
def test_what_serves_is_always_a_release_that_can_and_everybody_knows_which(
    tell_stories: Callable[[list[Act]], None], acts: list[Act]
):
    tell_stories(acts)


@pytest.mark.soak
@settings(QUICK, max_examples=60)
@given(acts=st.lists(ACTS, min_size=20, max_size=60))
def test_it_does_in_long_stories_too(tell_stories: Callable[[list[Act]], None], acts: list[Act]):
    tell_stories(acts)
