"""A whole `manage.py up` for rollouts that tests lead over REST while they kill its processes, and the checks after that.

Version 1 of the model answers twice its input, version 2 three times its input. `misbehave` makes a version fail.
"""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import psutil

from repository.config import model_config
from repository.config.document import stamp_of
from repository.config.release import DEFAULT_ALIAS, aliases_of
from repository.config.traffic import TrafficPolicy, traffic_of
from tests.support.model_factory import python_model, tensors_text, write_config
from tests.support.serving_process import PATIENCE_S, kill_and_wait, wait_until
from tests.support.up_process import Up

MODEL = "moving"
FACTORS = {1: 2.0, 2: 3.0}  # version -> the factor of its model
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [5]}]}
PARTS = {part: ("-m", name) for part, name in (("server", "serving"), ("dashboard", "daphne"), ("worker", "celery"))}
PARTS["watch"] = ("manage.py", "watch")
UNDER_WAY = ("running", "paused")
DEVIATIONS = 6.0

_SOURCE = """
    import os
    import pathlib
    import time
    import triton_python_backend_utils as pb_utils

    FOLDER = pathlib.Path({folder!r})

    class TritonPythonModel:
        def initialize(self, args):
            (FOLDER / "{version} process").write_text(str(os.getpid()))
            while (FOLDER / "{version} loads").exists():
                time.sleep(0.01)

        def execute(self, requests):
            if (FOLDER / "{version} fails").exists():
                raise RuntimeError("its weights are gone")
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * {factor})]) for array in inputs]
"""


class RolloutHouse:
    """See the module's docstring. folder: the folder for data, and for the files that control the behaviour of versions.

    rights: more of them for the token. environment: settings of the installation.
    """

    def __init__(self, folder: Path, *rights: str, **environment: str) -> None:
        self._behaviour = folder / "behaviour"
        self._behaviour.mkdir()
        self.up = Up(folder / "data", **environment)
        self._rights = ["read", "write", "upload_code", *rights]
        self._http = httpx.Client(base_url=self.up.dashboard_url, timeout=PATIENCE_S)
        self.name = ""  # the name of the latest rollout
        self.answers: Counter[str] = Counter()  # the number of answers to the clients, by version
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> "RolloutHouse":
        repository = self.up.prepared(wanted=()).data / "models"
        tensors = [tensors_text(kind, [(f"{kind.upper()}0", "FP32", [1])]) for kind in ("input", "output")]
        policy = "version_policy { specific { versions: 1 } }"
        for version, factor in FACTORS.items():
            source = _SOURCE.format(folder=str(self._behaviour), version=version, factor=factor)
            python_model(repository, MODEL, source, version=version)
        write_config(
            repository / MODEL, f'name: "{MODEL}" backend: "python" max_batch_size: 8 {"".join(tensors)} {policy}'
        )
        self.up.start()
        try:
            self._sign_in()
            self.call("POST", f"models/{MODEL}/adopt")
            self.call("POST", f"models/{MODEL}/load")
            self.holds()
        except BaseException:
            self.up.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self.up.close()

    def misbehave(self, version: int, how: str, yes: bool = True) -> None:
        """Change the behaviour of a version. how: "fails" (each request), or "loads" (as long as it is set)."""
        path = self._behaviour / f"{version} {how}"
        if yes:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    # -- actions of a person, with a token -------------------------------------------------------------------------
    def _sign_in(self) -> None:
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', self._http.get("/sign-in").text)
        assert found is not None
        form = {"username": "admin", "password": self.up.password, "csrfmiddlewaretoken": found[1]}
        referer = {"Referer": f"{self.up.dashboard_url}/sign-in"}
        self._http.post("/sign-in", data=form, headers=referer)
        headers = {**referer, "X-CSRFToken": self._http.cookies["slipway_csrf"]}
        asked = {"name": "house", "rights": self._rights}
        token = self._http.post("/api/v1/tokens", json=asked, headers=headers).raise_for_status().json()["token"]
        self._http.cookies.clear()
        self._http.headers["Authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str, **more: Any) -> Any:
        """Return the answer of the REST API. Raise AssertionError for a refusal, httpx.TransportError without an answer."""
        answer = self._http.request(method, f"/api/v1/{path}", **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def start(self, candidate: int, **plan: Any) -> None:
        body = {"candidate": candidate, "kind": "canary", "plan": {"guardrails": [], **plan}}
        self.name = self.call("POST", f"models/{MODEL}/rollouts", json=body)["rollout"]["name"]

    def act(self, what: str, **body: Any) -> None:
        self.call("POST", f"models/{MODEL}/rollouts/{self.name}/{what}", **({"json": body} if body else {}))

    def rollout(self) -> dict[str, Any]:
        """Return the newest rollout, as REST shows it; {} if there is none, or the dashboard does not answer."""
        try:
            rows = self.call("GET", f"models/{MODEL}/rollouts?page_size=1")["results"]
            if not rows:
                return {}
            self.name = rows[0]["name"]
            found: dict[str, Any] = self.call("GET", f"models/{MODEL}/rollouts/{self.name}")
        except httpx.HTTPError:
            return {}
        return found

    # -- kills -----------------------------------------------------------------------------------------------------
    def pid(self, part: str) -> int:
        """Return the process id of a part; 0 if it does not run."""
        return next(iter(self.up.running(*PARTS[part])), 0)

    def kill(self, part: str) -> None:
        """Send SIGKILL to one of PARTS, or to "up" itself, which is then started again after all its processes have ended."""
        if part != "up":
            kill_and_wait(wait_until(lambda: self.pid(part), what=f"the {part} runs"))
            return
        assert self.up.process is not None
        left = self.up.processes()
        self.up.process.kill()
        self.up.process.wait()
        wait_until(lambda: not any(_lives(pid) for pid in left), what="no orphan is left")
        self.up.start()

    def hang(self, part: str) -> int:
        pid: int = wait_until(lambda: self.pid(part), what=f"the {part} runs")
        os.kill(pid, signal.SIGSTOP)
        return pid

    def process_of(self, version: int) -> int:
        """Return the id of the child process that runs a version."""
        return int((self._behaviour / f"{version} process").read_text())

    # -- clients ---------------------------------------------------------------------------------------------------
    def ask(self, count: int, version: str = "") -> Counter[str]:
        """Send `count` requests. Return the number of answers of each version. Raise AssertionError for a failed request or a
        wrong answer."""
        path = f"/v2/models/{MODEL}" + (f"/versions/{version}" if version else "")
        found: Counter[str] = Counter()
        with httpx.Client(base_url=self.up.http_url, timeout=PATIENCE_S) as client:
            for _ in range(count):
                answer = client.post(f"{path}/infer", json=BODY)
                assert answer.is_success, answer.text
                message = answer.json()
                assert message["outputs"][0]["data"] == [5 * FACTORS[int(message["model_version"])]]
                found[message["model_version"]] += 1
        return found

    @contextmanager
    def asking(self, patience_s: float = PATIENCE_S) -> Iterator[None]:
        """Send some 25 requests a second during the block, counted in `answers` and `failures`. patience_s: the timeout."""
        stop = Event()

        def ask() -> None:
            with httpx.Client(base_url=self.up.http_url, timeout=patience_s) as client:
                while not stop.wait(0.04):
                    try:
                        answer = client.post(f"/v2/models/{MODEL}/infer", json=BODY)
                    except httpx.HTTPError as error:
                        self.failures[type(error).__name__] += 1
                        stop.wait(0.05)
                        continue
                    if answer.is_success:
                        self.answers[answer.json()["model_version"]] += 1
                    else:
                        self.failures[f"{answer.status_code} {answer.json()['error']}"] += 1

        thread = Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    # -- checks ----------------------------------------------------------------------------------------------------
    def text(self) -> str:
        return (self.up.data / "models" / MODEL / "config.pbtxt").read_text()

    def newest(self) -> tuple[int, str, list[int]]:
        """Return the number, text and versions of the newest release."""
        row = "SELECT number, text, versions FROM dashboard_release JOIN dashboard_model m ON m.id = model_id"
        number, text, versions = self.up.query(f"{row} WHERE m.name = ? ORDER BY number DESC LIMIT 1", MODEL)[0]
        return number, text, json.loads(versions)

    def policy(self) -> TrafficPolicy | None:
        return traffic_of(model_config.parse(self.newest()[1]))

    def report(self) -> dict[str, Any]:
        """Return the server's own report on the rollout; {} if it does not answer, or has not loaded the model."""
        key = {"slipway-control-key": (self.up.data / "control_key").read_text()}
        url = f"{self.up.http_url}/v2/slipway/models/{MODEL}/traffic"
        try:
            answer = httpx.get(url, headers=key, timeout=PATIENCE_S)
        except httpx.HTTPError:
            return {}
        return dict(answer.json()) if answer.is_success else {}

    def serving(self) -> int | None:
        """Return the number of the release that the server reports as served."""
        key = {"slipway-control-key": (self.up.data / "control_key").read_text()}
        try:
            rows = httpx.post(f"{self.up.http_url}/v2/repository/index", headers=key, timeout=PATIENCE_S).json()
        except (httpx.HTTPError, ValueError):
            return None
        found = {row.get("release") for row in rows if row["name"] == MODEL and row.get("state") == "READY"}
        return found.pop() if len(found) == 1 else None

    def wrong(self) -> str:
        """Return a contradiction between text, rollout, server and page; "" if there is none."""
        number, text, versions = self.newest()
        config = model_config.parse(text)
        policy, default = traffic_of(config), aliases_of(config).get(DEFAULT_ALIAS, max(versions))
        if stamp_of(self.text()) != number:
            return f"config.pbtxt is that of release {stamp_of(self.text())}, not of {number}"
        if self.serving() != number:
            return f"the server serves release {self.serving()}, not {number}"
        report, shown = self.report(), self.rollout()
        if report.get("rollout") != (policy.rollout if policy else None):
            return f"the server is at rollout {report.get('rollout')}, the text at {policy}"
        if not shown:
            return "" if policy is None else "the page shows no rollout"
        rollout = shown["rollout"]
        state, stable, candidate = rollout["state"], rollout["stable"], rollout["candidate"]
        both = {stable, candidate} <= set(versions)
        if state not in UNDER_WAY:
            answers = {"done": candidate, "holding": candidate}.get(state, stable)
            right = policy is None and default == answers and (both or state != "holding")
            return "" if right else f"{state}, but {default} of {versions} answers by default; {policy}"
        if policy is None or (policy.rollout, policy.weight) != (rollout["name"], rollout["weight"]):
            return f"{state} at {rollout['weight']}, but the text says {policy}"
        if report["asked_weight"] != policy.weight or report["weight"] != (0 if report["breach"] else policy.weight):
            return f"the server is asked for {report['asked_weight']}, and gives {report['weight']}"
        if default != stable or not both:
            return f"{default} of {versions} answers by default"
        if not shown["serves"] or shown["in_force"] != report["weight"]:
            return f"the page says serves {shown['serves']}, {shown['in_force']} in force; it is {report['weight']}"
        return ""

    def holds(self) -> None:
        """Wait until there is no contradiction, then check which versions answer."""
        found: list[str] = [""]

        def agree() -> bool:
            try:
                found[0] = self.wrong()
            except (AssertionError, httpx.HTTPError) as error:
                found[0] = f"{type(error).__name__}: {error}"
            return not found[0]

        try:
            wait_until(agree, 3 * PATIENCE_S)
        except AssertionError:
            raise AssertionError(f"{found[0]}; {self.rollout()}\n{self.up.output[-3000:]}") from None
        self.shares()

    def shares(self, count: int = 60) -> None:
        """Check that each version answers as often as its share in the text, within the limits of chance."""
        _, text, versions = self.newest()
        config = model_config.parse(text)
        policy, default = traffic_of(config), aliases_of(config).get(DEFAULT_ALIAS, max(versions))
        weight = float(self.report()["weight"]) / 100 if policy is not None else 0.0
        other = policy.candidate if policy is not None else 0
        answered = self.ask(count)
        assert set(answered) <= {str(default), str(other)}
        off = abs(answered[str(other)] - count * weight)
        assert off <= DEVIATIONS * (count * weight * (1 - weight)) ** 0.5, f"{answered} at {weight:.0%}"
        for version in versions:
            assert self.ask(1, str(version)) == {str(version): 1}, "each that is served answers by its number"


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
