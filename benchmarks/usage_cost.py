"""Measures what counting usage and checking quotas cost a request: in instructions, and in CPU time by pairs.

    python -m benchmarks.usage_cost [--time-only]

Instructions: one binary request under valgrind, whose server has only the auth file, then also the usage log, then also two
quotas. Time: the calls of one request (admitted, executed, answered) on real objects, in turn with and without counting; the
median of the pairs' differences.
"""

import argparse
import asyncio
import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.instructions.__main__ import count_cases
from benchmarks.instructions.cases import Case
from benchmarks.instructions.clients import TOKEN
from benchmarks.instructions.counting import check_tools
from repository.core.usage_log import Holder
from serving.cli.options import Options
from serving.core.batch import Batch
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest
from serving.core.response import InferenceResponse
from serving.usage.accounts import Account, Quota
from serving.usage.ledger import Ledger

PAIRS = 300
CALLS = 500
PEOPLE = [
    {"of": "person", "name": "ada", "requests_per_day": 10**9},
    {"of": "group", "name": "lab", "rows_per_day": 10**9},
]
RATE = {"of": "token", "name": hashlib.sha256(TOKEN.encode()).hexdigest(), "requests_per_second": 10**6}


def write_auth(path: Path, quotas: list[dict[str, Any]]) -> Path:
    entry = {
        "name": "t",
        "sha256": RATE["name"],
        "models": ["*"],
        "rights": ["infer"],
        "person": "ada",
        "groups": ["lab"],
    }
    path.write_text(json.dumps({"tokens": [entry], "quotas": quotas}))
    return path


def count_instructions(folder: Path) -> None:
    check_tools()
    plain = f"--auth-file={write_auth(folder / 'plain.json', [])}"
    quotas = f"--auth-file={write_auth(folder / 'quotas.json', [*PEOPLE, RATE])}"
    log = f"--usage-log={folder / 'usage'}"
    only = ("--model-control-mode=explicit", "--load-model=plain")
    cases = [
        Case("binary with a token", "binary with a token", "plain", 1, (plain, *only)),
        Case("binary with a token, counted", "binary with a token", "plain", 1, (plain, log, *only)),
        Case("binary with a token, counted, 3 quotas", "binary with a token", "plain", 1, (quotas, log, *only)),
    ]
    count_cases(cases, folder, {}, compiled=False)


class Answered:
    """One request after another that is admitted, executed and answered, as in the server."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger
        self._headers = {"authorization": f"Bearer {TOKEN}"}
        self._asked = InferenceRequest("m", {"x": np.ones((1, 16), np.float32)})
        self._answer = InferenceResponse("m", 1, "", {"y": np.ones((1, 16), np.float32)})
        self._responder = CallbackResponder(lambda _answer, _final: None)

    def run(self) -> None:
        for _ in range(CALLS):
            request = InFlightRequest(self._asked, self._responder)
            if self._ledger is not None:
                self._ledger.admit(request, self._headers)
            batch = Batch([request], 1)
            batch.started_ns, batch.ended_ns = 1, 2
            for observer in request.observers:
                observer.executed(request, batch)
            request.respond(self._answer)


def timed(work: Callable[[], None]) -> float:
    began = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - began) / CALLS


async def compare_times(folder: Path) -> None:
    for name, quotas in (("counted", []), ("counted, 3 quotas", [*PEOPLE, RATE])):
        auth = write_auth(folder / f"{len(quotas)}.json", quotas)
        options = Options(model_repository=(folder,), auth_file=auth, usage_log=folder / f"log-{len(quotas)}")
        ledger = Ledger(options, lambda _: True)
        ledger.start(asyncio.get_running_loop())
        without, counted = Answered(None), Answered(ledger)
        differences = []
        for pair in range(PAIRS):
            first, second = (without, counted) if pair % 2 else (counted, without)
            times = {first: timed(first.run), second: timed(second.run)}
            differences.append(times[counted] - times[without])
            await asyncio.sleep(0)
        quartiles = statistics.quantiles(differences, n=4)
        low, high = quartiles[0], quartiles[2]
        print(
            f"{name}: {statistics.median(differences):.0f} ns of CPU time a request, quartiles {low:.0f} to {high:.0f} ns"
        )
        await ledger.close()


def time_checks() -> None:
    """Print how long the check of quotas takes, which is all that a refused request costs: the fastest of many rounds."""
    for number in (1, 3):
        account = Account("x", Holder("t", "ada", ("lab",)))
        quotas = tuple([Quota("person", "ada") for _ in range(number)])
        for quota in quotas:
            quota.requests_per_day = quota.rows_per_day = quota.compute_ns_per_day = 10**15
            quota.interval_ns, quota.slack_ns = 1, 10**15
        account.bind(quotas)
        fastest = min(timed(lambda account=account: _check(account)) for _ in range(PAIRS))  # type: ignore[misc]
        print(f"the check of {number} quotas with all four limits: {fastest:.0f} ns")


def _check(account: Account) -> None:
    for now_ns in range(CALLS):
        account.blocked_by(now_ns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-only", action="store_true", help="do not count instructions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-usage-cost-") as folder:
        time_checks()
        asyncio.run(compare_times(Path(folder)))
        if not given.time_only:
            count_instructions(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
