"""A real server with a shadow: planted differences are found with the right figures, for any kind of candidate."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repository.core.tensors import read_tensor
from serving.frontends.rest.mismatches import _written
from serving.traffic.mismatches import Mismatch
from tests.serving.traffic.remotes.services import Received, service
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

SECRET = "hunter2-of-this-test"


class Shadowed:
    """A server whose model `scale` has version 1 (x * 2), which answers, and version 2 (x * 2.5)."""

    def __init__(self, repository: Path, server: ServerProcess, remotes: Path) -> None:
        self.repository = repository
        self.server = server
        self.remotes = remotes

    def load(self, **traffic: Any) -> tuple[int, Any]:
        """Load the model with this policy."""
        values = {"slipway.aliases": {"default": 1}, "slipway.traffic": {"rollout": "r", **traffic}}
        parameters = "".join(
            f"parameters {{ key: {json.dumps(key)} value {{ string_value: {json.dumps(json.dumps(value))} }} }}\n"
            for key, value in values.items()
        )
        onnx_scale(self.repository, factor=2.0, extra=f"version_policy {{ all {{ }} }}\n{parameters}")
        return self.server.post("/v2/repository/models/scale/load")

    def list_remotes(self, *urls: str) -> None:
        self.remotes.write_text(json.dumps({url: {"headers": {"X-Key": SECRET}} for url in urls}))

    def ask(self, *values: float) -> list[Any]:
        """Send each value by itself; what the clients get."""
        answers = []
        for value in values:
            tensor = {"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}
            status, answer = self.server.post("/v2/models/scale/infer", {"inputs": [tensor]})
            assert status == 200, answer
            answers.append(answer["outputs"][0]["data"][0])
        return answers

    def traffic(self) -> dict[str, Any]:
        status, report = self.server.get("/v2/slipway/models/scale/traffic")
        assert status == 200, report
        return dict(report)

    def compare(self, value: float) -> list[Any]:
        """Ask until the answer has been compared: the loop of a machine under load drops mirrors."""
        before = self.traffic()["shadow"]
        answers = self.ask(value)
        after = wait_until(lambda: self._shadow_after(before), what="the fate of the mirrored request")
        return answers if after["compared"] > before["compared"] else self.compare(value)

    def _shadow_after(self, before: dict[str, Any]) -> dict[str, Any] | None:
        shadow: dict[str, Any] = self.traffic()["shadow"]
        return shadow if (shadow["compared"], shadow["dropped"]) != (before["compared"], before["dropped"]) else None

    def mismatches(self, after: int = 0) -> Any:
        status, found = self.server.get(f"/v2/slipway/models/scale/traffic/mismatches?after={after}")
        assert status == 200, found
        return found


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shadowed]:
    folder = tmp_path_factory.mktemp("shadow")
    repository, remotes = folder / "models", folder / "remotes.json"
    onnx_scale(repository, factor=2.0)
    onnx_scale(repository, factor=2.5, version=2)
    remotes.write_text("{}")
    with ServerProcess(repository, "--model-control-mode=explicit", f"--traffic-remotes={remotes}") as server:
        yield Shadowed(repository, server, remotes)


def test_a_planted_difference_is_found_with_its_figures_and_the_worst_inputs(shadowed: Shadowed) -> None:
    shadow = {"share": 100, "absolute": 0.5, "relative": 0, "keep": {"count": 2}}
    assert shadowed.load(rollout="local", candidate=2, shadow=shadow)[0] == 200
    for number in range(5):
        assert shadowed.compare(float(number)) == [2.0 * number]
    found = shadowed.traffic()["shadow"]
    assert (found["compared"], found["disagreed"], found["mismatched"], found["failed"]) == (5, 3, 0, 0)
    assert (found["max_absolute"], found["mean_absolute"]) == (2.0, 1.0)
    assert found["max_relative"] == pytest.approx(0.2)
    assert found["stable_latency"]["total"] == found["candidate_latency"]["total"] == 5
    worst = shadowed.mismatches()
    assert [one["inputs"][0]["data"] for one in worst] == [[3.0], [4.0]]
    assert [one["score"] for one in worst] == [3.0, 4.0]
    assert (worst[1]["stable"][0]["data"], worst[1]["candidate"][0]["data"]) == ([8.0], [10.0])
    assert shadowed.mismatches(worst[0]["id"]) == worst[1:]
    at = "/v2/slipway/models/scale/traffic/mismatches"
    assert shadowed.server.request("DELETE", f"{at}?until=x")[0] == 400
    assert shadowed.server.request("DELETE", f"{at}?until={worst[0]['at']}")[0] == 200
    assert shadowed.mismatches() == worst[1:]
    assert shadowed.server.request("DELETE", at)[0] == 200
    assert shadowed.mismatches() == []
    status, report = shadowed.server.get("/v2/slipway/models/scale/traffic/mismatches?after=x")
    assert (status, "expected 'after'" in report["error"]) == (400, True)

    page = urllib.request.urlopen(shadowed.server.metrics_url, timeout=PATIENCE_S).read().decode()
    assert 'slipway_shadow_disagreed_total{arm="candidate",model="scale",version="2"} 3\n' in page

    arms = shadowed.traffic()["arms"]
    assert (arms["stable"]["requests"], arms["candidate"]["requests"]) == (5 + sum(found["dropped"].values()), 0)
    rows = shadowed.server.get("/v2/models/scale/versions/2/stats")[1]["model_stats"]
    assert rows[0]["inference_count"] == 5  # of the version, which has executed them

    assert shadowed.load(rollout="local", candidate=2, shadow=shadow | {"keep": False})[0] == 200
    shadowed.compare(9.0)
    assert shadowed.traffic()["shadow"]["disagreed"] == 4
    assert shadowed.mismatches() == []


def test_large_tensors_of_mismatches_are_sent_as_bytes_which_readers_of_examples_read() -> None:
    array = np.random.default_rng(4).random((1, 100_000)).astype(np.float32)
    texts = np.array([[b"a", b"\0\xff"] * 600], np.object_)
    mismatch = Mismatch(7, 1.5, 2.0, 1.0, "why", {"x": array, "t": texts}, {"y": array[:, :2]}, {"y": array[:, :2]}, 1)
    (row,) = json.loads(_written([mismatch]))
    assert row["stable"][0]["data"] == row["candidate"][0]["data"]
    read = {tensor.name: tensor for tensor in map(read_tensor, row["inputs"])}
    assert np.array_equal(np.array(read["x"].elements, np.float32).reshape(read["x"].shape), array)
    assert list(read["t"].elements) == texts.ravel().tolist()
    assert len(json.dumps(row)) < 1.5 * array.nbytes


def test_a_candidate_on_a_listed_server_is_asked_and_its_key_is_sent_to_no_other(
    shadowed: Shadowed, tmp_path: Path
) -> None:
    onnx_scale(tmp_path, "other", factor=3.0)
    shadow = {"share": 100, "absolute": 0, "relative": 0}
    with ServerProcess(tmp_path) as second:
        remote = {"url": second.http_url, "model": "other"}
        shadowed.list_remotes("http://127.0.0.1:1")
        status, report = shadowed.load(rollout="second", candidate=remote, shadow=shadow)
        assert status == 400
        assert f"'{second.http_url}' is not listed in --traffic-remotes" in report["error"]
        shadowed.list_remotes(second.http_url)
        assert shadowed.load(rollout="second", candidate=remote, shadow=shadow)[0] == 200
        assert shadowed.compare(4.0) == [8.0]
        found = shadowed.traffic()["shadow"]
        assert (found["disagreed"], found["max_absolute"]) == (1, 4.0)
        assert shadowed.mismatches()[0]["candidate"][0]["data"] == [12.0]
        assert shadowed.traffic()["arms"]["candidate"]["remote"] == second.http_url
    wait_until(lambda: shadowed.ask(4.0) and shadowed.traffic()["shadow"]["dropped"].get("refused"))
    log = (
        shadowed.server.log
        + json.dumps(shadowed.traffic())
        + json.dumps(shadowed.server.get("/v2/models/scale/config"))
    )
    assert SECRET not in log


def test_fastapi_beside_its_successor_in_either_direction(shadowed: Shadowed) -> None:
    with service(lambda received: {"prediction": [2 * received.json["features"][0] + 1]}) as fastapi:
        shadowed.list_remotes(fastapi.url)
        remote = {
            "url": f"{fastapi.url}/predict",
            "protocol": "json",
            "request": {"features": "$INPUT0[row]"},
            "response": {"OUTPUT0": "prediction"},
        }
        shadow = {"share": 100, "absolute": 0, "relative": 0}
        assert shadowed.load(rollout="old-answers", stable=remote, candidate=1, shadow=shadow)[0] == 200
        assert shadowed.compare(5.0) == [11.0]
        assert shadowed.traffic()["shadow"]["max_absolute"] == 1.0
        assert shadowed.mismatches()[0]["candidate"][0]["data"] == [10.0]

        assert shadowed.load(rollout="new-answers", candidate=remote, shadow=shadow)[0] == 200
        assert shadowed.compare(5.0) == [10.0]
        assert shadowed.traffic()["shadow"]["max_absolute"] == 1.0
        assert shadowed.mismatches()[0]["candidate"][0]["data"] == [11.0]
        assert {one.headers["x-key"] for one in fastapi.received} == {SECRET}

        assert shadowed.load(rollout="canary", candidate=remote, weight=100)[0] == 200
        assert shadowed.ask(5.0) == [11.0]


def test_a_header_that_has_changed_in_the_list_is_sent_once_the_policy_is_taken_again(shadowed: Shadowed) -> None:
    with service(lambda received: {"prediction": [2.0]}) as other:
        remote = {
            "url": other.url,
            "protocol": "json",
            "request": {"x": "$INPUT0"},
            "response": {"OUTPUT0": "prediction"},
        }
        for key in ("first", "second"):
            shadowed.remotes.write_text(json.dumps({other.url: {"headers": {"X-Key": key, "Host": "model.example"}}}))
            assert shadowed.load(rollout="rotated", stable=remote, candidate=1)[0] == 200
            shadowed.ask(1.0)
        assert [one.headers["x-key"] for one in other.received] == ["first", "second"]
        assert {one.headers["host"] for one in other.received} == {"model.example"}


def test_a_template_that_does_not_fit_the_model_is_refused_with_the_load(shadowed: Shadowed) -> None:
    shadowed.list_remotes("http://127.0.0.1:1")
    remote = {
        "url": "http://127.0.0.1:1",
        "protocol": "json",
        "request": {"features": "$features"},
        "response": {"OUTPUT0": "prediction"},
    }
    status, report = shadowed.load(rollout="wrong", candidate=remote)
    assert status == 400
    assert "names no input; the model has INPUT0" in report["error"]


def test_clients_get_answers_while_the_candidate_hangs(shadowed: Shadowed) -> None:
    going_on = threading.Event()

    def hang(received: Received) -> Any:
        going_on.wait(PATIENCE_S)
        return {"prediction": [0.0]}

    with service(hang) as slow:
        shadowed.list_remotes(slow.url)
        remote = {
            "url": slow.url,
            "protocol": "json",
            "request": {"x": "$INPUT0"},
            "response": {"OUTPUT0": "prediction"},
            "timeout_s": 600,
        }
        shadow = {"share": 100, "max_in_flight": 2}
        assert shadowed.load(rollout="hangs", candidate=remote, shadow=shadow)[0] == 200

        def many_dropped() -> bool:
            assert shadowed.ask(*range(1, 11)) == [2.0 * one for one in range(1, 11)]
            report = shadowed.traffic()["shadow"]
            assert report["compared"] == 0  # every client has its answer, and the candidate none
            return report["dropped"].get("in_flight", 0) >= 7

        wait_until(many_dropped, what="mirrors that find as many under way as may be")
        assert len(slow.received) <= 2
        going_on.set()
        wait_until(lambda: shadowed.traffic()["shadow"]["compared"], what="the comparison of those under way")
