"""Finds the account of each request, refuses requests over a quota, and writes the usage log once a second."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC, date, datetime, timedelta

from repository.core.usage_log import Counts, Holder, Key
from serving.cli.options import Options
from serving.core.errors import QuotaReached
from serving.core.in_flight import InFlightRequest
from serving.usage.accounts import COMPUTE_NS, FAILED, REQUESTS, ROWS, Account, Quota, Use
from serving.usage.auth_file import AuthFile, Grant, QuotaLimits, digest_of
from serving.usage.counter_page import CounterPage, private_cells
from serving.usage.usage_log import Totals, UsageLog

log = logging.getLogger(__name__)

WRITE_EVERY_S = 1.0
MAX_HEADERS = 4096  # headers whose account is remembered
NOBODY = Holder("", "", ())
_S = 1_000_000_000


def utc_day() -> date:
    return datetime.now(UTC).date()


class Ledger:
    """See the module's docstring. All methods run on the event loop's thread.

    active: whether anything has to be counted: there is a log or a quota.
    """

    def __init__(self, options: Options, knows: Callable[[str], bool], today: Callable[[], date] = utc_day) -> None:
        """knows: returns whether there is a model of a name. Clients may name any other model, which must not add counters.
        today: returns the day in UTC."""
        assert options.auth_file is not None
        self._file = AuthFile.of(options.auth_file)
        self._knows = knows
        self._today = today
        self._day = today()
        self._log = UsageLog(options.usage_log, self._day)
        self._keeps_log = options.usage_log is not None
        self._page: CounterPage = self._log.page
        self._accounts: dict[str, Account] = {}
        self._by_header: dict[str, Account] = {}
        self._quotas: dict[tuple[str, str], Quota] = {}
        self._version = 0
        self._changed: list[Use] = []
        self._holders: dict[str, Holder] = {}  # holders that the log may not have yet
        self._unwritten: dict[date, tuple[dict[Key, Counts], dict[str, Holder]]] = {}  # what a full disk has refused
        self._timer: asyncio.TimerHandle | None = None
        self.active = self._keeps_log
        self._restore()
        self._reload()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to write the log and to follow the auth file."""
        self._loop = loop
        self._tick()

    async def close(self) -> None:
        """Write what is not written yet."""
        if self._timer is not None:
            self._timer.cancel()
        self._write()
        await asyncio.to_thread(self._log.close)

    # -- requests ----------------------------------------------------------------------------------------------------
    def admit(self, request: InFlightRequest, headers: Mapping[str, str] | None) -> None:
        """Count a request from now on. Raises QuotaReached if it is over a quota."""
        header = headers.get("authorization", "") if headers else ""
        account = self._by_header.get(header) or self._find(header)
        if account is None:
            return
        if account.quotas:
            quota = account.blocked_by(request.arrival_ns)
            if quota is not None:
                self._refuse(account, quota, request)
        use = account.uses.get(request.asked.model_name) or self._use(account, request.asked.model_name)
        if use is not None:
            request.observers = (*request.observers, use)

    def _refuse(self, account: Account, quota: Quota, request: InFlightRequest) -> None:
        use = self._use(account, request.asked.model_name)
        if use is not None:
            use.refused()
        raise refusal(quota, request.arrival_ns, self._seconds_left())

    def _find(self, header: str) -> Account | None:
        digest = digest_of(header)
        if not digest:  # another kind of check has let the request in, such as that of a plugin
            return None
        if self._file.version != self._version:
            self._reload()
        # A worker may know a token some moments earlier than this process: the token counts already, but without its holder.
        account = self._accounts.get(digest) or self._account(digest, NOBODY)
        if len(self._by_header) >= MAX_HEADERS:
            self._by_header.clear()
        self._by_header[header] = account
        return account

    def _use(self, account: Account, model: str) -> Use | None:
        found = account.uses.get(model)
        if found is None and self._knows(model):
            cells = self._page.cells((account.digest, model))
            found = account.uses[model] = Use(account, model, cells, self._changed)
        return found

    def _seconds_left(self) -> float:
        """Return the seconds until the day ends."""
        midnight = datetime.combine(self._day + timedelta(days=1), datetime.min.time(), UTC)
        return max(0.0, midnight.timestamp() - time.time())

    # -- accounts ----------------------------------------------------------------------------------------------------
    def _account(self, digest: str, holder: Holder) -> Account:
        account = self._accounts[digest] = Account(digest, holder)
        self._holders[digest] = holder
        return account

    def _restore(self) -> None:
        """Take over what earlier processes have counted today."""
        for (digest, model), cells in self._log.cells.items():
            account = self._accounts.get(digest) or self._account(digest, self._log.holders.get(digest, NOBODY))
            account.uses[model] = Use(account, model, cells, self._changed)

    def _reload(self) -> None:
        """Take over the auth file. Counters stay, also those of a revoked token until the day ends."""
        self._version = self._file.version
        content = self._file.content
        for digest, grant in content.grants.items():
            account = self._accounts.get(digest)
            if account is None:
                self._account(digest, grant.holder)
            elif account.holder != grant.holder:
                account.holder = self._holders[digest] = grant.holder
        self._forget_revoked(content.grants)
        quotas: dict[tuple[str, str], Quota] = {}
        for limits in content.quotas:
            key = limits.of, limits.name
            quotas[key] = _with_limits(self._quotas.get(key) or Quota(*key), limits)
        self._quotas = quotas
        self._bind()
        self.active = self._keeps_log or bool(quotas)

    def _forget_revoked(self, grants: Mapping[str, Grant]) -> None:
        for digest, account in list(self._accounts.items()):
            if digest not in grants and not account.uses:
                del self._accounts[digest]
        self._by_header.clear()

    def _bind(self) -> None:
        """Give each account its quotas. A quota counts what all its accounts have used today."""
        for account in self._accounts.values():
            holder = account.holder
            keys = [("token", account.digest), ("person", holder.person), *(("group", one) for one in holder.groups)]
            account.bind(tuple([self._quotas[key] for key in keys if key in self._quotas]))
        for quota in self._quotas.values():
            of = [account for account in self._accounts.values() if quota in account.quotas]
            quota.requests = max(quota.requests, sum(one.used(REQUESTS, FAILED) for one in of))
            quota.rows = max(quota.rows, sum(one.used(ROWS) for one in of))
            quota.compute_ns = max(quota.compute_ns, sum(one.used(COMPUTE_NS) for one in of))
            quota.judge()

    # -- the log -----------------------------------------------------------------------------------------------------
    def _tick(self) -> None:
        try:
            if self._file.version != self._version:
                self._reload()
            today = self._today()
            if today != self._day:
                self._end_day(today)
            else:
                self._write()
        except Exception:
            log.exception("counting usage failed; trying again")
        self._timer = self._loop.call_later(min(WRITE_EVERY_S, self._seconds_left() + 0.001), self._tick)

    def _write(self) -> None:
        """Write the counters that have changed."""
        changed = self._changed[:]
        self._changed.clear()  # each Use refers to this list
        for use in changed:
            use.noted = False
        uses = {(use.account.digest, use.model): tuple(use.cells) for use in changed}
        holders, self._holders = self._holders, {}
        self._submit(self._day, uses, holders)
        for day in [day for day in self._unwritten if day != self._day]:
            self._submit(day, {}, {}, ends=True)

    def _end_day(self, today: date) -> None:
        """Write the last totals of the day, and begin another day with counters of 0. If the clock was set, the other day may
        have been counted already; it goes on."""
        everything = [use for account in self._accounts.values() for use in account.uses.values()]
        uses = {(use.account.digest, use.model): tuple(use.cells) for use in everything}
        uses = {key: counts for key, counts in uses.items() if any(counts)}
        holders = {account.digest: account.holder for account in self._accounts.values()}
        self._submit(self._day, uses, holders, ends=True)
        counted, named = self._counted(today)  # before the page, which a pending write would remove
        self._day, self._page = today, self._log.page_of(today)
        self._changed.clear()
        grants = self._file.content.grants
        for use in everything:  # requests under way observe these objects
            stays = use.account.digest in grants
            use.cells = self._page.cells((use.account.digest, use.model)) if stays else private_cells()
            use.noted = False
        self._accounts = {digest: one for digest, one in self._accounts.items() if digest in grants}
        self._by_header.clear()
        for quota in self._quotas.values():
            quota.requests = quota.rows = quota.compute_ns = 0
        self._holders = holders
        self._take_over(counted, named)
        self._bind()

    def _counted(self, day: date) -> Totals:
        """Return what was counted on a day before the clock was set. Only then this waits for the log's thread."""
        uses, holders = self._log.totals(day).result() if day < self._day or self._log.has(day) else ({}, {})
        left_uses, left_holders = self._unwritten.get(day, ({}, {}))
        return uses | left_uses, holders | left_holders

    def _take_over(self, counted: Mapping[Key, Counts], named: Mapping[str, Holder]) -> None:
        for (digest, model), counts in counted.items():
            account = self._accounts.get(digest) or self._account(digest, named.get(digest, NOBODY))
            use = account.uses.get(model)
            if use is None:
                use = account.uses[model] = Use(account, model, self._page.cells((digest, model)), self._changed)
            for index, count in enumerate(counts):
                use.cells[index] = count

    def _submit(self, day: date, uses: dict[Key, Counts], holders: dict[str, Holder], ends: bool = False) -> None:
        """Write a record, with what an earlier failed write has left."""
        if not self._keeps_log:
            return
        left_uses, left_holders = self._unwritten.pop(day, ({}, {}))
        uses, holders = left_uses | uses, left_holders | holders
        if not uses and not holders and not ends:
            return

        def done(written: "Future[bool]") -> None:
            if written.cancelled() or written.exception() is not None or not written.result():
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._keep_unwritten, day, uses, holders)

        self._log.submit(day, uses, holders, ends).add_done_callback(done)

    def _keep_unwritten(self, day: date, uses: dict[Key, Counts], holders: dict[str, Holder]) -> None:
        newer_uses, newer_holders = self._unwritten.get(day, ({}, {}))
        self._unwritten[day] = (uses | newer_uses, holders | newer_holders)


def refusal(quota: Quota, now_ns: int, day_left_s: float) -> QuotaReached:
    """Return the error for a request over a quota. day_left_s: the seconds until the day ends."""
    whose = {"token": "this token", "person": f"'{quota.name}'", "group": f"the group '{quota.name}'"}[quota.of]
    per_day = (
        (quota.requests, quota.requests_per_day, f"{quota.requests_per_day:,} requests"),
        (quota.rows, quota.rows_per_day, f"{quota.rows_per_day:,} rows"),
        (quota.compute_ns, quota.compute_ns_per_day, f"{quota.compute_ns_per_day / _S:,.10g} compute seconds"),
    )
    reached = next((text for used, limit, text in per_day if limit and used >= limit), None)
    if reached is not None:
        wait_s = max(1, math.ceil(day_left_s))
        return QuotaReached(
            f"the quota of {whose} is {reached} a day, and is used up: try again in {wait_s} s, on the next day (UTC), or ask "
            "an administrator for more",
            wait_s,
        )
    wait_s = max(1, math.ceil(quota.wait_ns(now_ns) / _S))
    rate = f"{_S / quota.interval_ns:,.6g}"
    return QuotaReached(f"the quota of {whose} is {rate} requests a second: try again in {wait_s} s", wait_s)


def _with_limits(quota: Quota, limits: QuotaLimits) -> Quota:
    quota.requests_per_day = limits.requests_per_day
    quota.rows_per_day = limits.rows_per_day
    quota.compute_ns_per_day = math.ceil(limits.compute_seconds_per_day * _S)
    rate = limits.requests_per_second
    quota.interval_ns = max(1, round(_S / rate)) if rate else 0
    quota.slack_ns = quota.interval_ns * (max(1, math.floor(rate)) - 1)
    return quota
