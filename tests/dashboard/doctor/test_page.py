"""The page of the doctor: the checks run in a process of their own, which ends when nobody waits for it."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import psutil
import pytest
from rest_framework.test import APIClient

from dashboard.doctor import run
from dashboard.doctor.check import Check, examine
from dashboard.doctor.table import CHECKS
from tests.support.serving_process import PATIENCE_S

ADDRESS = "/api/v1/doctor"


@pytest.mark.django_db
def test_rest_makes_every_check_and_tells_each_in_a_line(
    person: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URI", "redis://localhost")
    client = APIClient()
    client.force_authenticate(person(is_superuser=True))
    response = client.post(ADDRESS, headers={"Accept": "application/x-ndjson"})
    assert (response.status_code, response["Content-Type"]) == (200, "application/x-ndjson")

    async def read() -> list[Any]:
        found = []
        async for part in response.streaming_content:
            found.append(json.loads(part))
            assert client.post(ADDRESS).status_code == 409
        return found

    found = asyncio.run(read())
    assert [one.get("check") for one in found] == [check.name for check in CHECKS]
    assert found[0]["state"] == "wrong"
    assert "It looks like REDIS_URL: rename it" in found[0]["faults"][0]


def of_program(monkeypatch: pytest.MonkeyPatch, program: str) -> AsyncGenerator[bytes, None]:
    monkeypatch.setattr(run, "COMMAND", (sys.executable, "-c", program))
    return cast("AsyncGenerator[bytes, None]", run.findings(silent_s=1))


def test_checks_that_nobody_waits_for_are_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

    async def leave() -> int:
        async with aclosing(of_program(monkeypatch, program)) as lines:
            return int(await anext(lines))

    assert not psutil.pid_exists(asyncio.run(leave()))
    run.refuse_second()  # which would be refused if the first still counted


@pytest.mark.parametrize(
    ("program", "told"),
    [("import time; time.sleep(600)", "A check hangs and was broken off"), ("", "The checks ended too early")],
)
def test_checks_that_hang_or_end_early_are_told(monkeypatch: pytest.MonkeyPatch, program: str, told: str) -> None:
    async def read() -> list[Any]:
        return [json.loads(one) async for one in of_program(monkeypatch, program)]

    (last,) = asyncio.run(read())
    assert told in last["error"]


def test_a_check_that_hangs_is_broken_off_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang() -> list[str]:
        signal.pause()
        return []

    timer = signal.getitimer(signal.ITIMER_REAL)  # of pytest-timeout
    checks = [Check("a", "A", hang, limit_s=0.05), Check("b", "B", lambda: ["it is broken"])]
    try:
        slow, next_one = examine(checks, limited=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *(timer if timer[0] else (PATIENCE_S,)))
    assert (slow.state, next_one.faults) == ("wrong", ("It is broken.",))
    assert "was broken off: see whether the disks" in slow.faults[0]
