"""Sends requests without a pause through a whole rollout: no request may fail, and each arm must get its share.

    python -m benchmarks.rollout_soak --requests 500000

The program runs a complete `manage.py up` and controls the rollout over the dashboard's REST API: 5, 25, 50 per cent, abort,
then 5, 25, 50, 100 per cent, and promotion. Most clients are raw HTTP connections, the others are the stock tritonclient over
HTTP and gRPC. Every answer must match the version that it names. Shares are counted only while the weight does not change, and
must be within five standard deviations. The exit status is 1 if a request fails or a share is wrong.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc.aio
import tritonclient.http.aio
import uvloop

from benchmarks.soak.dashboard import Dashboard
from tests.support.model_factory import onnx_scale
from tests.support.up_process import Up

MODEL = "rollout"
FACTORS = {1: 2.0, 2: 3.0}  # version -> the factor of its model
RAW, STOCK = 8, 2
DEVIATIONS = 5.0
PATIENCE_S = 120.0
GIVES_UP = 1000  # a phase ends after this number of failures
NOT_BEFORE_ASKED = {"weight": 0.0, "bake_s": 90 * 24 * 3600.0}
BODY = b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[5]}]}'
REQUEST = b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: soak\r\nContent-Length: %d\r\n\r\n%b" % (
    MODEL.encode(),
    len(BODY),
    BODY,
)
ANSWER = re.compile(rb'"model_version":"(\d+)".*"data":\[([^\]]*)\]', re.DOTALL)
LENGTH = re.compile(rb"(?i)content-length: (\d+)")


class Run:
    """The counts of requests and answers. phase: the current phase; None during a change."""

    def __init__(self) -> None:
        self.phase: str | None = None
        self.answers: dict[str, Counter[int]] = {}
        self.asked = 0
        self.failures: Counter[str] = Counter()
        self.going = True

    def count(self, begun: str | None, version: int, value: float) -> None:
        """Count an answer. begun: the phase in which the request was sent."""
        self.asked += 1
        if value != 5 * FACTORS.get(version, 0.0):
            self.failures[f"version {version} answered {value}"] += 1
        elif begun is not None and begun == self.phase:
            self.answers.setdefault(begun, Counter())[version] += 1

    def fail(self, error: BaseException | str) -> None:
        self.asked += 1
        self.failures[str(error)[:200] or type(error).__name__] += 1


# -- clients -----------------------------------------------------------------------------------------------------------
async def raw(run: Run, port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while run.going:
        begun = run.phase
        writer.write(REQUEST)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, asyncio.IncompleteReadError) as error:
            run.fail(error)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        found = ANSWER.search(body)
        if found is None:
            run.fail(body.decode(errors="replace"))
        else:
            run.count(begun, int(found[1]), float(found[2]))
    writer.close()


async def stock(run: Run, module: Any, url: str) -> None:
    inputs = [module.InferInput("INPUT0", [1, 1], "FP32")]
    inputs[0].set_data_from_numpy(np.array([[5]], np.float32))
    async with module.InferenceServerClient(url) as client:
        while run.going:
            begun = run.phase
            try:
                answer = await client.infer(MODEL, inputs)
            except Exception as error:
                run.fail(error)
                continue
            response = answer.get_response()
            version = response["model_version"] if isinstance(response, dict) else response.model_version
            run.count(begun, int(version), float(answer.as_numpy("OUTPUT0")[0, 0]))


# -- the rollout -------------------------------------------------------------------------------------------------------
class Rollout:
    """A rollout, and the REST calls of a person who manages it."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._name = ""

    async def start(self) -> None:
        steps = [{**NOT_BEFORE_ASKED, "weight": weight} for weight in (5, 25, 50, 100)]
        body = {"candidate": 2, "kind": "canary", "plan": {"steps": steps, "promote": "hand"}}
        self._name = (await self._dashboard.ask("POST", f"models/{MODEL}/rollouts", json=body))["rollout"]["name"]
        await self._in_force(5)

    async def advance(self, weight: float) -> None:
        await self._post("advance")
        await self._in_force(weight)

    async def abort(self) -> None:
        await self._post("abort")
        await self._serves()

    async def promote(self) -> None:
        await self._post("promote")
        await self._serves()

    async def _post(self, act: str) -> None:
        await self._dashboard.ask("POST", f"models/{MODEL}/rollouts/{self._name}/{act}")

    async def _in_force(self, weight: float) -> None:
        await self._until(
            lambda report: report["serves"] and report["in_force"] == weight, f"the weight to be {weight}"
        )

    async def _serves(self) -> None:
        await self._until(lambda report: report["serves"], "the release to serve")

    async def _until(self, right: Any, what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not right(report := await self._dashboard.ask("GET", f"models/{MODEL}/rollouts/{self._name}")):
            if time.monotonic() > deadline or report["rollout"]["state"] == "rolled_back":
                raise TimeoutError(f"waited for {what}; the rollout is {report['rollout']}")
            await asyncio.sleep(0.1)


async def go_through(run: Run, dashboard: Dashboard, requests: int) -> None:
    """Take the rollout through its steps while clients send a ninth of `requests` in each phase, and more during changes."""
    rollout = Rollout(dashboard)
    phases = [
        ("5 %", rollout.start),
        ("25 %", lambda: rollout.advance(25)),
        ("50 %", lambda: rollout.advance(50)),
        ("back to 0 %", rollout.abort),
        ("5 % again", rollout.start),
        ("25 % again", lambda: rollout.advance(25)),
        ("50 % again", lambda: rollout.advance(50)),
        ("100 %", lambda: rollout.advance(100)),
        ("promoted", rollout.promote),
    ]
    for name, change in phases:
        run.phase = None
        await change()
        answers = run.answers[name] = Counter()
        run.phase = name
        while answers.total() < requests / len(phases) and run.failures.total() < GIVES_UP:
            await asyncio.sleep(0.05)
        print(f"{name}: {dict(answers)}; {run.asked:,} requests so far, {run.failures.total()} failed", flush=True)
    run.going = False


SHARES = {
    **{f"{weight} %": weight / 100 for weight in (5, 25, 50, 100)},
    **{f"{weight} % again": weight / 100 for weight in (5, 25, 50)},
    "back to 0 %": 0.0,
    "promoted": 1.0,
}


def table(run: Run) -> tuple[str, bool]:
    """Return the counts as Markdown, and whether every share is right."""
    lines, right = ["| phase | requests | candidate | asked | deviations |", "| --- | --- | --- | --- | --- |"], True
    for phase, answers in run.answers.items():
        total, share = answers.total(), SHARES[phase]
        deviation = (total * share * (1 - share)) ** 0.5
        off = abs(answers[2] - total * share) / (deviation or 1.0)
        right &= off <= DEVIATIONS and total > 0
        lines.append(f"| {phase} | {total:,} | {answers[2] / total:.3%} | {share:.0%} | {off:.1f} |")
    return "\n".join(lines), right and run.answers.keys() == SHARES.keys()


async def measure(up: Up, requests: int) -> Run:
    run, dashboard = Run(), Dashboard(up)
    await dashboard.sign_in()
    for version, factor in FACTORS.items():
        config = "version_policy { specific { versions: 1 } }"
        onnx_scale(up.data / "models", MODEL, factor, version=version, extra=config)
    await dashboard.ask("POST", f"models/{MODEL}/adopt")
    await dashboard.ask("POST", f"models/{MODEL}/load")
    await dashboard.becomes(MODEL, "ready")
    port, grpc_port = up.ports[1], up.ports[2]
    clients = [asyncio.create_task(raw(run, port)) for _ in range(RAW)]
    for _ in range(STOCK):
        clients.append(asyncio.create_task(stock(run, tritonclient.http.aio, f"127.0.0.1:{port}")))
        clients.append(asyncio.create_task(stock(run, tritonclient.grpc.aio, f"127.0.0.1:{grpc_port}")))
    try:
        await go_through(run, dashboard, requests)
        await asyncio.gather(*clients)
    finally:
        for client in clients:
            client.cancel()
        await dashboard.close()
    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-rollout-") as folder, Up(Path(folder) / "data") as up:
        up.start()
        began = time.monotonic()
        run = uvloop.run(measure(up, given.requests))
        seconds = time.monotonic() - began
    text, right = table(run)
    print(f"\n{run.asked:,} requests in {seconds:.0f} s, {run.failures.total()} failed\n\n{text}")
    for message, count in run.failures.most_common(10):
        print(f"{count} x {message}")
    return 0 if right and not run.failures else 1


if __name__ == "__main__":
    sys.exit(main())
