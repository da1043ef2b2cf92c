"""Brings one server to the desired state, by load and unload, and records the server's reports."""

import asyncio
import json
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import NamedTuple, TypedDict

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections
from django.utils import timezone

from dashboard.examples.outcomes import outcomes_of_check
from dashboard.examples.selectors import golden_checks
from dashboard.metrics.feed import FeedReader, Told
from dashboard.models import Model, ModelSync, Release, ReleaseCheck, Server
from dashboard.models.release import CheckStep
from dashboard.releases import life
from dashboard.releases.loading import Ask, LoadPlan, folders_renew, load_plans, needs_another_load
from dashboard.releases.observation import checks_observed, releases_observed
from dashboard.releases.overrides import override_of
from dashboard.servers import server_state
from dashboard.servers.client import AsyncServerClient, Unreachable, release_of, steps_of
from dashboard.servers.holdings import holdings_of
from dashboard.servers.messages import IndexRow
from dashboard.servers.server_state import HOLDS, Applied, Report, VersionStatus
from dashboard.servers.services import server_event_record
from dashboard.servers.wanted import Wanted, Wishes
from dashboard.shared.choices import EventKind, ModelStatus, version_word
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.missing_versions import MissingVersions, lacking_versions, missing_versions
from dashboard.watch.plan import Attempts, DesiredModel, make_plan
from dashboard.watch.together import Reading, Together
from repository.core.condition import Condition
from repository.core.errors import RepositoryError

logger = logging.getLogger(__name__)

BUSY_INTERVAL_S = 0.2
# While nothing is to be done, a server looks so often what is wanted: the first, or the second for each server if that is
# longer. So many servers look together as often as 200 of them, and each notices a wish later by as much.
CALM_INTERVAL_S, CALM_S = 0.5, 0.005
INDEX_INTERVAL_S = 1.0
# The same while the live feed tells what changes, and everything is as it should be: of a bundled server, and of another one.
# Only what the feed does not tell is noticed as late as that, such as a model that somebody put into the repository.
FED_INTERVAL_S, FED_FAR_INTERVAL_S = 5.0, 10.0
# From the begin of an index to the next, for each of its rows: one of 10,000 rows is read once a second at most. Longer leaves
# more CPU time to other servers, and the states of many models are known later. A row takes about as long to read.
ROW_S = 1e-4
FED_S = 2.5  # a feed whose last event is older does not tell
LOST_S = 10.0  # a server that has been away for longer is asked each second
SEEN_INTERVAL_S = 5.0
# The most models whose states are recorded at once: the one thread of the database does other work between two parts.
RECORDED_MOST = 500
CONCURRENT_LOADS = 4
LONG_S = 30.0  # a load that takes longer may hang, so that others no longer wait for it
BREAK_OFF_S = 5.0  # a load that is no longer wanted is cancelled after this time

_ENDED = "The inference server ended while it loaded this release."
_REPLACED = "Another release was wanted before it was ready, so its load was broken off after {:.0f} s."
_HELD = (
    "The inference server ended {} times in a row while it loaded this model, so it is not tried again automatically. "
    "Load it once more to try, or set slipway.isolation to process in its configuration."
)

# Stock Triton sends no condition, so it is derived from the reason of an unloaded version (model_lifecycle.cc).
_CONDITIONS_BY_REASON = {"unloaded": Condition.UNLOADED}


class _Facts(TypedDict):
    release: Release
    server: Server


class _Beginning(NamedTuple):
    """A load that begins. override: whether it sends a configuration in place of the folder's."""

    load: life.Begun
    model_id: int
    override: bool


class _Begun(NamedTuple):
    """A load under way. release: the wanted release, None for a model without releases. at: its start, monotonic seconds."""

    generation: int
    release: Release | None
    at: float


class Reconciler:
    """The control loop of one server. feed: knows which process of the server answers, after its first event."""

    def __init__(
        self, server: Server, client: AsyncServerClient, feed: FeedReader, together: Together | None = None
    ) -> None:
        self.server = server
        self._together = together or Together()
        self._client = client
        self._feed = feed
        self._attempts: dict[str, Attempts] = defaultdict(Attempts)
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._begun: dict[str, _Begun] = {}  # of each load
        # Models whose load should be cancelled in favour of the next one, with the time of the last request to cancel it.
        self._broken_off: dict[str, float] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_LOADS)
        # What was recorded of each model by its name, None before the first time and after the server was lost; the models
        # whose serving release is to be recorded again; and the models of the dashboard at the last time.
        self._recorded: dict[str, list[VersionStatus]] | None = None
        self._unsure: set[str] = set()
        self._names: set[str] = set()
        self._reading: Reading | None = None
        self._wishes: list[Wanted] = []
        self._again: frozenset[int] = frozenset()  # as the reading says
        self._applied: dict[int, tuple[int, float]] | None = None  # model -> generation, and when it was written
        self._announced: list[str] | None = None
        self._answers: bool | None = None
        self._returning = False  # the server was down, and its models are being loaded again
        self._seen: tuple[bool, str] | None = None
        self._resumed = False  # whether checks that an earlier `watch` abandoned have been ended
        self._looked_at: datetime | None = None  # when the server was seen last, also by an earlier `watch`
        self._missing: dict[str, MissingVersions] = {}  # the missing versions at the last step
        self._reloading: set[str] = set()  # models that are being loaded for their missing versions
        self._holds: object = None  # what was recorded of the server's repository
        self._indexed_at, self._seen_at, self._lost_at = float("-inf"), 0.0, 0.0
        self._acted_at = float("-inf")  # when it was last seen what should be loaded
        self._next_at = 0.0  # when the index may be read again, unless something else is wanted
        self._greeted = 0  # of the feed, at the last index
        self._index: tuple[list[VersionStatus], set[str]] | None = None  # the versions, and the names of all models
        self._settled = False  # whether everything was as it should be then
        self._wake = asyncio.Event()  # set when a call ends, so that the next step begins immediately

    async def run(self) -> None:
        try:
            while True:
                pause = await self._step_or_wait()
                # A timer takes less than asyncio.timeout, whose end is an exception, and there are hundreds of these a second.
                timer = asyncio.get_running_loop().call_later(pause, self._wake.set)
                await self._wake.wait()
                timer.cancel()
                self._wake.clear()
        finally:
            for call in self._calls.values():
                call.cancel()

    async def _step_or_wait(self) -> float:
        """Take one step, and return the seconds until the next."""
        try:
            if not self._resumed:
                await sync_to_async(life.end_abandoned_checks)(server=self.server)
                self._looked_at = await sync_to_async(server_state.last_seen)(server=self.server)
                self._resumed = True
            return BUSY_INTERVAL_S if await self.step() else max(CALM_INTERVAL_S, CALM_S * self._together.servers)
        except Error as error:
            logger.error("the database did not answer (%s); trying again", error)
            await sync_to_async(close_old_connections)()
            return INDEX_INTERVAL_S

    async def step(self) -> bool:
        """Compare desired and actual state once, and act on it. Return whether the next step should come soon."""
        # A call that ends during this step counts in the next one, because the index may be older than its end.
        busy = set(self._calls)
        reading, changed = await self._together.read(), False
        if reading is not self._reading:
            wishes = reading.wishes.of(self.server)
            if self.server.bundled:
                await self._announce(sorted(one.name for one in wishes if one.loaded))
            again = reading.again_on(self.server)
            changed = (wishes, again) != (self._wishes, self._again)
            self._reading, self._wishes, self._again = reading, wishes, again
        now = time.monotonic()
        if not changed and not self._due(now):
            await self._say_seen()
            return False
        try:
            statuses, held = await self._statuses(now)
        except DashboardError as error:
            await self._lost(error)
            return time.monotonic() - self._lost_at < LOST_S
        wanted = await self._desired(reading)
        if not self.server.bundled:
            wanted = await self._record_holdings(reading, wanted, held)
        await self._start_calls(reading, wanted, statuses, busy | set(self._calls), now)
        return bool(self._calls)

    async def _statuses(self, now: float) -> tuple[list[VersionStatus], set[str]]:
        """Return the versions on the server, and the names of all models that its repository holds.

        If only what is wanted has changed, that is known from the last index and the feed.
        """
        fed = self._settled and now - self._feed.heard_at < FED_S and not self._due(now)
        if self._index is None or not fed or any(one.loaded and one.name not in self._index[1] for one in self._wishes):
            self._indexed_at, self._greeted = now, self._feed.greeted
            self._feed.news.clear()  # the index is newer
            self._index = None
            index = await self._client.index()
            self._next_at = now + ROW_S * len(index)
            self._index = version_statuses(index), {row["name"] for row in index}
        self._acted_at = now
        return self._index

    def _told_otherwise(self) -> bool:
        """Return whether the feed tells something else than the last index, which has the end of a load sooner."""
        if self._feed.greeted != self._greeted or self._recorded is None:
            return True
        for (name, version), told in self._feed.news.items():
            if told not in [_told_of(one) for one in self._recorded.get(name, ()) if one.version == version]:
                return True
        self._feed.news.clear()
        return False

    def _due(self, now: float) -> bool:
        """Return whether the index should be read. While the feed tells what changes, it is read seldom."""
        if now < self._next_at:
            return False
        fed = now - self._feed.heard_at < FED_S and self._answers is True
        if not fed and (self._calls or now - self._lost_at < LOST_S):
            return True
        interval = INDEX_INTERVAL_S
        if fed and self._settled and not self._calls:
            interval = FED_INTERVAL_S if self.server.bundled else FED_FAR_INTERVAL_S
        since = self._indexed_at if self._settled else max(self._indexed_at, self._acted_at)
        return now - since >= interval or (fed and self._told_otherwise())

    async def _say_seen(self) -> None:
        """Record that the server answers, which its feed says between two indexes."""
        if self._answers and time.monotonic() - self._feed.heard_at < FED_S and self._seen is not None:
            self._looked_at = timezone.now()
            if time.monotonic() >= self._seen_at:
                self._together.checked(self.server)
                self._seen_at = time.monotonic() + SEEN_INTERVAL_S

    async def _desired(self, reading: Reading) -> list[DesiredModel]:
        """Return the desired models with what was applied. Only this object applies; others ask for a load again."""
        if self._applied is None:
            rows = ModelSync.objects.filter(server=self.server).values_list("model_id", "applied_generation")
            found = await sync_to_async(lambda: dict(rows))()
            self._applied = {pk: (generation, 0.0) for pk, generation in found.items()}
        for pk in self._again:
            if self._applied.get(pk, (0, 0.0))[1] <= reading.began:
                self._applied[pk] = (0, 0.0)
        return [
            DesiredModel(
                one.model_id,
                one.name,
                one.loaded,
                one.generation,
                self._applied.get(one.model_id, (-1, 0.0))[0],
                one.release,
            )
            for one in self._wishes
        ]

    def _note_applied(self, model_id: int, generation: int) -> None:
        if self._applied is not None:
            self._applied[model_id] = (generation, time.monotonic())

    async def _announce(self, names: list[str]) -> None:
        """Write the list of wanted models, so that a server that comes back knows which models will be loaded."""
        if names == self._announced:
            return
        try:
            await sync_to_async(server_state.wanted_models_write)(names)
        except (OSError, RepositoryError) as error:
            logger.warning("the list of wanted models was not written: %s", error)
        else:
            self._announced = names

    async def _record_holdings(
        self, reading: Reading, wanted: list[DesiredModel], held: set[str]
    ) -> list[DesiredModel]:
        """Record what the server's repository holds, and return the wanted models without those that it lacks.

        A load of these could only fail. They are loaded as soon as the repository has them.
        """
        lacks = sorted(one.name for one in wanted if one.loaded and one.name not in held)
        found = holdings_of(held, reading.wishes.names, lacks)
        if found != self._holds:
            await sync_to_async(server_state.server_info_record)(server=self.server, key=HOLDS, value=found)
            self._holds = found
        return [one for one in wanted if one.name in held or not one.loaded]

    async def _start_calls(
        self,
        reading: Reading,
        wanted: list[DesiredModel],
        statuses: list[VersionStatus],
        busy: set[str],
        now: float,
    ) -> None:
        states: dict[str, set[str]] = defaultdict(set)
        for status in statuses:
            states[status.name].add(state_for_plan(status))
        for one in wanted:
            self._attempts[one.name].renew(one.generation)
        again = await self._record_missing(reading, wanted, statuses, busy, now)
        await self._break_off(wanted, now)
        long = {name for name, begun in self._begun.items() if now - begun.at >= LONG_S}
        plan = make_plan(wanted, states, self._attempts, busy, now, again, long)
        self._reloading |= {one.name for one in plan.load if one.name in again}
        for one in plan.load:
            self._begin(one, self._load(one, reload=ModelStatus.READY in states[one.name]))
        for one in plan.unload:
            self._begin(one, self._unload(one))
        for one in plan.meanwhile:
            self._begin(one, self._load_meanwhile(one))
        failing = any(one.failures or one.crashes for one in self._attempts.values())
        lacking = len(wanted) < len(self._wishes)
        self._settled = not (plan.pending or failing or lacking or self._missing)
        await self._record_states(statuses, reading.wishes.names, ready=not plan.pending)
        if self._returning and not plan.pending:
            await self._returned([one.name for one in wanted if one.loaded], states)

    async def _record_missing(
        self,
        reading: Reading,
        wanted: list[DesiredModel],
        statuses: list[VersionStatus],
        busy: set[str],
        now: float,
    ) -> set[str]:
        """Record which wanted versions are not served, and return the models to load again because of that."""
        idle = [one for one in wanted if one.name not in busy]
        lacking = lacking_versions(idle, statuses, reading.served)
        missing = await sync_to_async(missing_versions)(lacking) if lacking else {}
        for one in idle:
            found, before, attempts = missing.get(one.name), self._missing.pop(one.name, None), self._attempts[one.name]
            tried = one.name in self._reloading and attempts.next_at <= now
            self._reloading.discard(one.name)
            if found is None and before is not None:
                await sync_to_async(server_state.model_sync_recovered)(server=self.server, model_id=one.id)
            elif found is not None and tried:
                attempts.failed(one.generation, now, found.error)
                await self._record_failure(one, found.error, attempts.failures)
            elif found is not None and not found.loadable and found != before:
                await self._record_failure(one, found.error, 1)
        self._missing.update(missing)
        return {name for name, found in missing.items() if found.loadable}

    async def _record_failure(self, one: DesiredModel, error: str, attempts: int) -> None:
        logger.warning("model %s: %s", one.name, error)
        await sync_to_async(server_state.model_sync_failed)(
            server=self.server, model_id=one.id, generation=one.generation, attempts=attempts, error=error
        )

    async def _record_states(self, statuses: list[VersionStatus], names: set[str], *, ready: bool) -> None:
        now = timezone.now()
        if self._looked_at is not None and abs(now - self._looked_at) > life.UNSEEN:
            await sync_to_async(life.lost)(server=self.server, at=self._looked_at)
            self._recorded = None
        await self._record_changes(statuses, names)
        seen = (ready, self._feed.instance)
        if not self._answers or seen != self._seen:
            await self._together.do(server_state.servers_seen, server_state.Seen(self.server, *seen))
            self._answers, self._seen = True, seen
            self._seen_at = time.monotonic() + SEEN_INTERVAL_S
        elif time.monotonic() >= self._seen_at:
            self._together.checked(self.server)
            self._seen_at = time.monotonic() + SEEN_INTERVAL_S
        self._looked_at = timezone.now()

    async def _record_changes(self, statuses: list[VersionStatus], names: set[str]) -> None:
        """Record the versions of those models of which the server reports something else than what was recorded."""
        found: dict[str, list[VersionStatus]] = defaultdict(list)
        for status in statuses:
            found[status.name].append(status)
        before, changed = self._recorded, set(found)
        if before is not None:
            changed = {name for name in found.keys() | before.keys() if found.get(name) != before.get(name)}
            changed |= self._unsure | (names ^ self._names)
            if not changed:
                return
        self._recorded, self._unsure = None, set()  # if the database does not answer, everything is recorded again
        ordered = sorted(changed)
        starts = range(0, len(ordered), RECORDED_MOST)
        parts: list[set[str] | None] = [set(ordered[start : start + RECORDED_MOST]) for start in starts]
        if before is None:
            parts[-1:] = [None]  # the last one is about all models, also those that have gone
        for part in parts:
            told = [status for status in statuses if part is None or status.name in part]
            await self._together.do(_record, Report(self.server, told, part))
        self._recorded, self._names = found, names

    async def _returned(self, names: list[str], states: dict[str, set[str]]) -> None:
        """Record an event for a server that was down: all its models are loaded again, or some of them are not."""
        self._returning = False
        missing = [name for name in names if ModelStatus.READY not in states[name]]
        if not names:
            return
        message = "Every model is loaded again."
        if missing:
            message = f"{len(names) - len(missing)} of {len(names)} models are loaded again; not {', '.join(missing)}."
        await sync_to_async(server_event_record)(server=self.server, kind=EventKind.READY, message=message)

    async def _lost(self, error: DashboardError) -> None:
        self._returning = self._returning or self._answers is True
        if self._answers is not False:
            logger.warning("%s", error.message)
            await sync_to_async(life.lost)(server=self.server, at=self._looked_at or timezone.now())
            await sync_to_async(server_state.server_lost)(server=self.server, reason=error.message)
            self._lost_at = time.monotonic()
        self._answers, self._recorded, self._seen = False, None, None

    # -- calls -----------------------------------------------------------------------------------------------------
    def _begin(self, one: DesiredModel, work: Coroutine[object, object, None]) -> None:
        task = self._calls[one.name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._forget_call(one, done))

    def _forget_call(self, one: DesiredModel, task: "asyncio.Task[None]") -> None:
        self._calls.pop(one.name, None)
        self._begun.pop(one.name, None)
        self._broken_off.pop(one.name, None)
        self._indexed_at = self._acted_at = float("-inf")
        self._wake.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("bringing model %s into step failed", one.name, exc_info=error)
            self._attempts[one.name].failed(one.generation, time.monotonic(), "")

    async def _break_off(self, wanted: list[DesiredModel], now: float) -> None:
        """Cancel long loads of releases that a person has replaced meanwhile, because such a load may hang.

        The request to cancel is repeated, because the server may run a load of an earlier `watch` before ours.
        """
        for one in wanted:
            begun = self._begun.get(one.name)
            if begun is None or begun.generation == one.generation:
                continue
            if now - max(begun.at, self._broken_off.get(one.name, 0.0)) < BREAK_OFF_S:
                continue
            needed = sync_to_async(needs_another_load)
            if not one.loaded or await needed(model_id=one.id, loading=begun.release, pinned=one.release):
                self._broken_off[one.name] = now
                logger.warning("model %s: cancelling a load that is not wanted any more", one.name)
                with suppress(DashboardError):  # other servers cannot do this
                    await self._client.break_off_load(one.name)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Hold one of the slots for loads; a long load frees its slot before it ends."""
        given_back = False

        def give_back() -> None:
            nonlocal given_back
            if not given_back:
                given_back = True
                self._slots.release()

        await self._slots.acquire()
        timer = asyncio.get_running_loop().call_later(LONG_S, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()

    async def _load(self, one: DesiredModel, *, reload: bool) -> None:
        """Load the wanted release; if no version serves and the wanted one fails or never passed, load the last good one."""
        async with self._slot():
            began = time.monotonic()
            plan = await self._plan(one, serves=reload)
            if plan is None:
                return
            try:
                if plan.good_first and await self._load_good(one, plan):
                    return  # the wanted release is loaded in the next step, while this one serves
                await self._load_wanted(one, plan, reload=reload)
            except Unreachable as error:
                # It is unknown whether the server ended because of this model; see plan.CRASH_RETRY_S.
                if error.midway:
                    await self._crashed(one)
            except DashboardError as error:
                if one.name in self._broken_off:
                    return
                await self._failed(one, error.message)
                if not plan.good_first:
                    await self._load_good(one, plan, error.message)
            else:
                seconds = time.monotonic() - began
                await self._succeeded(
                    one, EventKind.MODEL_LOADED, "Reloaded" if reload else "Loaded", seconds, plan.wanted
                )

    async def _plan(self, one: DesiredModel, *, serves: bool) -> LoadPlan | None:
        """Return the load plan, and record that this load begins."""
        plan, generation = await self._together.ask(_plan, Ask(one.id, self.server, serves, one.release))
        generation = one.generation if generation is None else generation
        self._begun[one.name] = _Begun(generation, plan.wanted if plan is not None else None, time.monotonic())
        return plan

    async def _load_meanwhile(self, one: DesiredModel) -> None:
        """Load the last good release while the wanted one waits for its next attempt."""
        async with self._slot():
            plan = await self._plan(one, serves=False)
            if plan is not None:
                await self._load_good(one, plan, self._attempts[one.name].error)

    async def _load_wanted(self, one: DesiredModel, plan: LoadPlan, *, reload: bool) -> None:
        if plan.wanted is None:
            await self._client.load(one.name)
            return
        if plan.override:
            logger.warning(
                "model %s is not on disk as release %d: loading that as it was made", one.name, plan.wanted.number
            )
        else:
            await self._together.do(folders_renew, (one.id, self.server))
        # Other servers have no live feed and know no golden requests.
        ours = self.server.bundled or bool(self._feed.instance)
        golden = await self._together.ask(_golden, one.id) if ours and (reload or not plan.passed) else ""
        await self._bring(one, plan.wanted, plan.override, golden)

    async def _load_good(self, one: DesiredModel, plan: LoadPlan, error: str = "") -> bool:
        """Load the last good release; return whether a release serves now. error: why the wanted release does not serve."""
        for release in plan.good:
            override = override_of(release)
            if not override:
                continue
            try:
                await self._bring(one, release, override)
            except Unreachable as lost:
                self._attempts[one.name].good_failed(one.generation, time.monotonic(), crashed=lost.midway)
                return False
            except DashboardError as refused:
                if one.name in self._broken_off:
                    return False
                logger.warning("model %s: release %d does not come back: %s", one.name, release.number, refused.message)
            else:
                await self._serves_instead(one, plan, release, error)
                return True
        self._attempts[one.name].good_failed(one.generation, time.monotonic())
        return False

    async def _bring(self, one: DesiredModel, release: Release, override: str, golden: str = "") -> None:
        """Ask the server to load a release, and record its answer. It raises the errors of AsyncServerClient.load."""
        facts = _Facts(release=release, server=self.server)
        before = None
        try:
            load = life.Begun(**facts, again=self._attempts[one.name].failures > 0)
            before = await self._together.ask(_record_begun, _Beginning(load, one.id, bool(override)))
        except Error as error:
            if override:  # without the record, the override would never be removed
                raise
            logger.error("model %s: loading it although that cannot be recorded (%s)", one.name, error)
        began = time.monotonic()
        try:
            answer = await self._client.load(one.name, override, golden)
        except Unreachable as error:
            if error.midway and self._attempts[one.name].crashes:
                await sync_to_async(life.failed)(**facts, error=_ENDED)
            else:  # the first time, something else may have crashed the server
                await sync_to_async(life.not_begun)(**facts, before=before)
            raise
        except DashboardError as error:
            if release_of(error) in (None, release.number):
                broken_off = one.name in self._broken_off
                why = _REPLACED.format(time.monotonic() - began) if broken_off else error.message
                await self._keep_outcomes(release, steps_of(error))
                await sync_to_async(life.failed)(**facts, error=why, steps=steps_of(error))
            else:  # as below
                await sync_to_async(life.not_begun)(**facts, before=before)
            raise
        if answer.get("release") not in (None, release.number):
            # The server read a newer release that was written meanwhile, so its answer says nothing about this one.
            await sync_to_async(life.not_begun)(**facts, before=before)
            return
        # If nothing had changed, the server took no steps, so the steps of the last check stay.
        steps = answer.get("steps") or (before.steps if before is not None else [])
        await self._keep_outcomes(release, answer.get("steps") or [])
        await self._together.do(life.all_passed, life.Passed(**facts, steps=steps))
        self._unsure.add(one.name)  # its release is recorded again, even if the server does not report the number

    async def _keep_outcomes(self, release: Release, steps: list[CheckStep]) -> None:
        if self.server.bundled and any(step.get("checks") for step in steps):
            await sync_to_async(outcomes_of_check)(release=release, steps=steps)

    async def _serves_instead(self, one: DesiredModel, plan: LoadPlan, release: Release, error: str) -> None:
        number = plan.wanted.number if plan.wanted else 0
        why = f"release {number} failed: {error.rstrip('.')}" if error else f"release {number} has yet to pass"
        await sync_to_async(server_state.model_sync_instead)(
            server=self.server,
            model_id=one.id,
            instance=self._feed.instance,
            release=release,
            message=f"Loaded release {release.number} of {one.name}, the last good one: {why}.",
        )
        self._note_applied(one.id, 0)

    async def _unload(self, one: DesiredModel) -> None:
        try:
            await self._client.unload(one.name)
        except Unreachable:
            return
        except DashboardError as error:
            await self._failed(one, error.message)
        else:
            await self._succeeded(one, EventKind.MODEL_UNLOADED, "Unloaded", 0.0)

    async def _succeeded(
        self, one: DesiredModel, kind: str, verb: str, seconds: float, release: Release | None = None
    ) -> None:
        attempts = self._attempts[one.name]
        attempts.failures = attempts.crashes = 0
        attempts.next_at = 0.0
        # If a model is only loaded again, that is no event; see `_returned`.
        news = one.generation != one.applied_generation
        took = f" in {seconds:.1f} s" if seconds >= 0.1 else ""
        event = (kind, f"{verb} {one.name}{took}." if news else "")
        applied = Applied(self.server, one.id, one.generation, self._feed.instance, event, release)
        await self._together.do(server_state.models_applied, applied)
        self._note_applied(one.id, one.generation)

    async def _failed(self, one: DesiredModel, error: str) -> None:
        attempts = self._attempts[one.name]
        attempts.failed(one.generation, time.monotonic(), error)
        await self._record_failure(one, error, attempts.failures)

    async def _crashed(self, one: DesiredModel) -> None:
        attempts = self._attempts[one.name]
        attempts.crashed(time.monotonic())
        if not attempts.held:
            return
        error = _HELD.format(attempts.crashes)
        await self._record_failure(one, error, attempts.crashes)


# -- what is done for several servers together -------------------------------------------------------------------------
def _record(reports: list[Report]) -> None:
    server_state.model_states_record(reports)
    releases_observed(reports)
    checks_observed(reports)


def _plan(asks: list[Ask]) -> list[tuple[LoadPlan | None, int | None]]:
    """Return the plan of each load, and the present generation of its model on the server."""
    plans = load_plans(asks)
    wishes = Wishes({ask.model_id for ask in asks})
    return [(plan, wishes.generation(ask.server, ask.model_id)) for ask, plan in zip(asks, plans, strict=True)]


def _golden(model_ids: list[int]) -> list[str]:
    """Return the golden requests of each model as JSON for a load; "" if there are none."""
    models = Model.objects.in_bulk(set(model_ids))
    checks = {pk: golden_checks(model) for pk, model in models.items()}
    texts = {pk: json.dumps(found) for pk, found in checks.items() if found}
    return [texts.get(pk, "") for pk in model_ids]


def _record_begun(loads: list[_Beginning]) -> list[ReleaseCheck | None]:
    server_state.model_syncs_override([(one.load.server, one.model_id, one.override) for one in loads])
    return life.all_began([one.load for one in loads])


def _told_of(status: VersionStatus) -> Told:
    """Return what the feed would tell of a version."""
    return Told(version_word(status.state, status.condition, status.failed), status.release, status.loading)


def state_for_plan(status: VersionStatus) -> str:
    """Return the state of a version for make_plan, with READY also for a version that a load would not improve.

    Such a version sleeps until its first request, or is an ensemble whose step is not ready: loading the ensemble would load
    that step against its desired state.
    """
    return ModelStatus.READY if status.condition in (Condition.ASLEEP, Condition.STEPLESS) else status.state


def version_statuses(index: list[IndexRow]) -> list[VersionStatus]:
    """Return the states of an index, without the rows of models that were never loaded, which have no version."""
    return [
        VersionStatus(
            row["name"],
            int(row["version"]),
            row["state"],
            row.get("reason", ""),
            row.get("condition", _CONDITIONS_BY_REASON.get(row.get("reason", ""), Condition.NONE)),
            row.get("failed", False),
            row.get("release", 0),
            row.get("loading"),
        )
        for row in index
        if row.get("version") and row.get("state")
    ]
