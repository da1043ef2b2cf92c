"""Sends rows to a model until each has an answer or a refusal, whatever happens to the server meanwhile."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from dashboard.batches.formats.table import Answer, Column, Row
from dashboard.batches.sending.governor import Governor, OwnRequests
from dashboard.batches.sending.pace import Pace
from dashboard.batches.sending.requests import Fault, Ready, answers_of, ready, request_of
from dashboard.models import Server
from dashboard.models.batch import BatchInput
from dashboard.servers.answers import read_answer
from dashboard.servers.client import AsyncServerClient, RawAnswer, Unreachable
from dashboard.shared.exceptions import DashboardError, Forbidden

MOST_REQUEST_BYTES = 8 << 20  # of one request, unless one row has more
MOST_ROWS = 1024  # under way
REQUESTS = 4  # whole batches under way at most
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
DEATHS = 3  # a row with which alone the server ended this often is refused
NICENESS = 10  # of the thread that sends; the server comes first
MOST_REASONS = 5  # different reasons of refused rows that are kept for the person who looks
_REASON_CHARACTERS = 300
_LATER = (404, 408, 429, 502, 503, 504)  # statuses of a server or model that is not ready; the rows are not at fault
_FORBIDDEN = (401, 403)

T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """The model that answers. most_rows: of one request; 0 for a model without batches. priority: 0 for the default."""

    server: Server
    model: str
    version: str
    inputs: list[BatchInput]
    outputs: list[tuple[str, Column]]
    most_rows: int
    priority: int = 0

    @property
    def batched(self) -> bool:
        return self.most_rows > 0


class Sender:
    """Answers rows on an event loop.

    answered, refused: rows so far. reasons: the first different ones of refused rows. trouble: why rows wait; "" if they
    do not.
    """

    def __init__(self, client: AsyncServerClient, target: Target) -> None:
        self._client, self._target = client, target
        self.own = OwnRequests()
        self.pace = Pace(min(MOST_ROWS, REQUESTS * max(target.most_rows, 1)))
        self.answered = self.refused = 0
        self.reasons: list[str] = []
        self.trouble = ""

    async def answer(self, rows: Sequence[Row]) -> list[Answer]:
        """Return the answer to each row. Raises Forbidden if the server does not let the dashboard infer."""
        answers: list[Answer | None] = [None] * len(rows)
        alike: dict[tuple[tuple[int, ...], ...], list[Ready]] = {}  # rows of the same shapes may share a request
        for number, row in enumerate(rows):
            try:
                one = ready(number, row, self._target.inputs)
                alike.setdefault(one.shapes, []).append(one)
            except Fault as fault:
                answers[number] = self._refuse(str(fault))
            if number % 1000 == 999:
                await asyncio.sleep(0)
        try:
            async with asyncio.TaskGroup() as group:
                for same in alike.values():
                    await self._send_all(group, same, answers)
        except ExceptionGroup as errors:
            [first, *_] = errors.exceptions
            raise first from None
        return [answer if answer is not None else Answer(error="the row was not answered") for answer in answers]

    async def _send_all(self, group: asyncio.TaskGroup, rows: Sequence[Ready], answers: list[Answer | None]) -> None:
        at = 0
        while at < len(rows):
            count = await self.pace.take(_fitting(rows, at, max(self._target.most_rows, 1)))
            group.create_task(self._send_taken(rows[at : at + count], answers))
            at += count

    async def _send_taken(self, rows: Sequence[Ready], answers: list[Answer | None]) -> None:
        """Send rows whose place is taken, and give the place back."""
        found = await self._send_until_answered(rows)
        for row, answer in zip(rows, found, strict=True):
            answers[row.number] = answer

    async def _send_until_answered(self, rows: Sequence[Ready]) -> list[Answer]:
        """Send a request until it is answered or refused. Called with its rows taken from the pace, which it gives back."""
        deaths, wait_s = 0, FIRST_WAIT_S
        suspect = failed = False
        while True:
            alone, answer = self.pace.alone, None
            try:
                answer = await self._ask(rows)
                self.trouble = _sentence(answer) if answer.status in _LATER else ""
            except Unreachable as error:
                self.trouble = error.message
                deaths += error.midway and alone
                if error.midway and not suspect:
                    suspect = True
                    self.pace.suspects += 1
            finally:
                self.pace.give(len(rows))
            is_later = answer is None or answer.status in _LATER
            again = (
                answer is not None and answer.status >= 500 and not is_later and not failed
            )  # it may have been an accident
            deadly = deaths >= (DEATHS if len(rows) == 1 else 1)
            if suspect and (deadly or not (is_later or again)):
                self.pace.suspects -= 1
                self.pace.give(0)
            if deadly:
                return await self._parted(rows, "the inference server ended each time that it got this row")
            if answer is not None and not is_later and not again:
                return await self._read(rows, answer)
            failed = failed or again
            if is_later:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            await self.pace.take(len(rows), whole=True)

    async def _ask(self, rows: Sequence[Ready]) -> RawAnswer:
        target = self._target
        body, headers = request_of(rows, target.inputs, batched=target.batched, priority=target.priority)
        began = time.monotonic()
        answer = await self._client.infer_raw(target.model, body, headers, target.version)
        if answer.status == 200:
            self.own.add(time.monotonic() - began)
        return answer

    async def _read(self, rows: Sequence[Ready], raw: RawAnswer) -> list[Answer]:
        if raw.status in _FORBIDDEN:
            raise Forbidden(_sentence(raw))
        try:
            answer = read_answer(raw)
            if not answer.refusal:
                found = answers_of(answer.outputs, self._target.outputs, len(rows), batched=self._target.batched)
                self.answered += len(rows)
                return found
            reason = answer.refusal
        except DashboardError as error:
            reason = error.message
        return await self._parted(rows, reason)

    async def _parted(self, rows: Sequence[Ready], reason: str) -> list[Answer]:
        """Send the two halves of a refused request, so that only the rows at fault are refused."""
        if len(rows) == 1:
            return [self._refuse(reason)]
        found: list[Answer] = []
        for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            await self.pace.take(len(half), whole=True)
            found += await self._send_until_answered(half)
        return found

    def _refuse(self, reason: str) -> Answer:
        self.refused += 1
        self.answered += 1
        told = reason[:_REASON_CHARACTERS]
        if len(self.reasons) < MOST_REASONS and told not in self.reasons:
            self.reasons.append(told)
        return Answer(error=reason)


class SendingThread:
    """A thread with an event loop that answers rows: `with SendingThread(target) as sending: sending.answer(rows)`."""

    def __init__(self, target: Target, *, governed: bool = True) -> None:
        self._target, self._governed = target, governed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"batch job for {target.model}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._client, self.sender = self._submit(self._opened()).result()
        if self._governed:
            self._submit(self._govern())
        return self

    def __exit__(self, *_: object) -> None:
        self._submit(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def answer(self, rows: Sequence[Row]) -> "Future[list[Answer]]":
        return self._submit(self.sender.answer(rows))

    def _run(self) -> None:
        with suppress(OSError):  # only this thread; a system may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _opened(self) -> tuple[AsyncServerClient, Sender]:
        client = AsyncServerClient(self._target.server)
        return client, Sender(client, self._target)

    async def _govern(self) -> None:
        pace = self.sender.pace
        try:
            await Governor(pace, self.sender.own, self._target.model).run(self._client)
        except Exception:
            logger.exception("requests of clients are not watched any more; the batch job goes on slowly")
            pace.hold(False)
            pace.careful()

    async def _close(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.__aexit__()

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _fitting(rows: Sequence[Ready], at: int, most: int) -> int:
    """Return the number of rows from `at` on that fit into one request."""
    size = count = 0
    while count < most and at + count < len(rows):
        size += rows[at + count].size
        if count and size > MOST_REQUEST_BYTES:
            break
        count += 1
    return count


def _sentence(answer: RawAnswer) -> str:
    return read_answer(answer).refusal
