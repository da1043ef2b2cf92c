"""Watches the rollouts of one server: hands its reports to rollouts.advance, and fetches mismatches."""

import asyncio
import logging
from datetime import datetime

from asgiref.sync import sync_to_async
from django.db import Error, InterfaceError, OperationalError, close_old_connections

from dashboard.metrics.feed import FeedReader
from dashboard.models import Rollout
from dashboard.models.rollout import TrafficReport
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.rollouts.advance import rollout_look, rollouts_open
from dashboard.rollouts.figures import keep_of, mismatches_store
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.together import Together

logger = logging.getLogger(__name__)

LOOK_S = 1.0
QUIET_LOOKED_AT = 30  # the most rollouts without a new report that each round checks; more of them take turns
MISMATCHES_S = 5.0


class RolloutWatch:
    """Checks every unfinished rollout until it is cancelled. feed: has the server's last report of each rollout."""

    def __init__(self, client: AsyncServerClient, feed: FeedReader, together: Together | None = None) -> None:
        self._client = client
        self._together = together or Together()
        self._feed = feed
        self._stored: dict[str, TrafficReport] = {}  # the last report of each rollout that was stored, by its name
        self._asked: set[tuple[str, str]] = set()  # (rollout, process) pairs for which the server was asked
        self._seen: dict[tuple[str, str], int] = {}  # id of the last mismatch, by rollout and process
        self._forgotten: dict[tuple[str, str], datetime] = {}  # time up to which that process forgot mismatches
        self._mismatches_at = 0.0
        self._looks = 0
        self._failed: dict[str, str] = {}  # rollouts whose last check failed, with the logged error

    async def run(self) -> None:
        while True:
            try:
                if (await self._together.read()).rolling:
                    await self.look()
            except Error as error:
                logger.error("the database did not answer (%s); rollouts wait", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Check every unfinished rollout once."""
        found = await sync_to_async(rollouts_open)()
        names = {rollout.name for rollout in found}
        self._stored = {name: report for name, report in self._stored.items() if name in names}
        self._asked = {key for key in self._asked if key[0] in names}
        self._failed = {name: why for name, why in self._failed.items() if name in names}
        now = asyncio.get_running_loop().time()
        fetch = now >= self._mismatches_at
        if fetch:
            self._mismatches_at = now + MISMATCHES_S
        turns = -(-len(found) // QUIET_LOOKED_AT)
        self._looks += 1
        for place, rollout in enumerate(found, self._looks):
            try:
                await self._look(rollout, in_turn=place % turns == 0)
                if fetch:
                    await self._fetch_mismatches(rollout)
                self._failed.pop(rollout.name, None)
            except (OperationalError, InterfaceError):  # a fault of the database, not of one rollout
                raise
            except Exception as error:  # a fault of one rollout: the others continue
                if self._failed.get(rollout.name) != repr(error):
                    logger.exception("rollout %s of %s was not looked at", rollout.name, rollout.model.name)
                self._failed[rollout.name] = repr(error)

    async def _look(self, rollout: Rollout, *, in_turn: bool) -> None:
        report = await self._news(rollout) if rollout.state in UNDER_WAY else None
        if report is None and not in_turn:
            return
        await sync_to_async(rollout_look)(
            rollout=rollout, server=self._client.server, report=report, instance=self._feed.instance
        )
        if report is not None:
            self._stored[rollout.name] = report

    async def _news(self, rollout: Rollout) -> TrafficReport | None:
        """Return the server's report of a rollout if it is new, else None. A report that the feed lacks is requested once."""
        report, key = self._feed.traffic.get(rollout.name), (rollout.name, self._feed.instance)
        if report is None and self._feed.instance and key not in self._asked:
            self._asked.add(key)
            try:
                if (answer := await self._client.traffic(rollout.model.name)) is not None:
                    self._feed.keep_report(answer)
            except DashboardError as error:  # the model is not loaded yet: the feed will have its report
                logger.debug("%s", error.message)
            report = self._feed.traffic.get(rollout.name)
        return None if report is self._stored.get(rollout.name) else report

    async def _fetch_mismatches(self, rollout: Rollout) -> None:
        report = self._stored.get(rollout.name)
        if report is None or report["shadow"] is None or not report["shadow"]["disagreed"] or keep_of(rollout) is None:
            return
        key = (rollout.name, self._feed.instance)
        try:
            if rollout.forgotten_at is not None and self._forgotten.get(key) != rollout.forgotten_at:
                await self._client.forget_mismatches(rollout.model.name, rollout.forgotten_at.timestamp())
                self._forgotten[key] = rollout.forgotten_at
            rows = await self._client.mismatches(rollout.model.name, self._seen.get(key, 0))
        except DashboardError as error:
            logger.debug("%s", error.message)
            return
        if rows:
            self._seen[key] = max(row["id"] for row in rows)
            await sync_to_async(mismatches_store)(rollout=rollout, server=self._client.server, rows=rows)
