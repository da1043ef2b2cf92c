"""A rollout as clients and operators of a real server see it, with and without frontend workers: sticky headers, the version in
answers, request log, traces, metrics, control API and live feed."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.serving.frontends.metrics.live_subscriber import Subscriber
from tests.serving.traffic.rollouts_in_process import BOTH, parameter, policy, scale
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

USERS = [f"user-{number}" for number in range(40)]
STICKY = {"header": "X-User"}


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "workers"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("rollout")
    repository = folder / "models"
    scale(repository, policy(50, sticky=STICKY))
    for number in (1, 2):
        generates = parameter("text_generation", {"prompt_input": "INPUT0", "output": "OUTPUT0"})
        text = f"{BOTH} {generates} {policy(50, sticky={'parameter': 'user'})}"
        model_factory.onnx_identity(repository, "echo", "BYTES", [1], version=number, extra=text)
    flags = [f"--frontend-workers={request.param}"] if request.param else []
    log, traces = f"--request-log={folder}/requests.log", f"--trace-config=triton,file={folder}/traces"
    settings = ("triton,log-frequency=1", "rate=1", "level=TIMESTAMPS")
    trace = [f"--trace-config={setting}" for setting in settings]
    with ServerProcess(
        repository, "--model-control-mode=explicit", "--load-model=*", log, traces, *trace, *flags
    ) as one:
        wait_until(
            lambda: len({version(one, "http", "user-1") for _ in range(20)}) == 1, what="workers know the header"
        )
        yield one


def version(server: ServerProcess, protocol: str, user: str, **fields: Any) -> str:
    """The version that answers, as the answer says, checked against what it computes."""
    library = tritonclient.http if protocol == "http" else tritonclient.grpc
    with library.InferenceServerClient(getattr(server, protocol)) as client:
        wire = library.InferInput("INPUT0", [1, 1], "FP32")
        wire.set_data_from_numpy(np.ones((1, 1), np.float32))
        headers = {"x-user": user} if user else {}
        answer = client.infer("scale", [wire], headers=headers, **fields)
    message = answer.get_response()
    found = str(message["model_version"] if protocol == "http" else message.model_version)
    assert float(answer.as_numpy("OUTPUT0")[0, 0]) == float(found)
    return found


def test_a_header_decides_on_the_version_over_every_protocol(server: ServerProcess) -> None:
    by_http = {user: version(server, "http", user) for user in USERS}
    assert set(by_http.values()) == {"1", "2"}
    assert by_http == {user: version(server, "grpc", user) for user in USERS}
    with httpx.Client(base_url=server.http_url, timeout=PATIENCE_S) as client:
        for user in USERS[:8]:
            answer = client.post("/v2/models/scale/generate", json={"INPUT0": 1.0}, headers={"x-user": user})
            assert answer.json()["model_version"] == by_http[user]
    assert version(server, "http", "user-1", model_version="1") == "1"


def test_a_server_reports_the_counts_of_each_arm(server: ServerProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        path = f"{server.http_url}/v2/slipway/models/scale/traffic"
        before = client.get(path).json()
        answered = [version(server, "grpc", user, request_id=f"told-{user}") for user in USERS]
        after = client.get(path).json()
        grown = {name: after["arms"][name]["requests"] - before["arms"][name]["requests"] for name in after["arms"]}
        assert grown == {"stable": answered.count("1"), "candidate": answered.count("2")}
        assert (after["rollout"], after["weight"], after["breach"]) == ("r-1", 50, None)
        assert after["arms"]["candidate"]["latency"]["total"] == after["arms"]["candidate"]["requests"]
        page = client.get(f"http://{server.metrics}/metrics").text
        counted = after["arms"]["candidate"]["requests"]
        assert f'slipway_rollout_requests_total{{arm="candidate",model="scale",version="2"}} {counted}\n' in page
        assert 'slipway_rollout_weight{arm="candidate",model="scale",version="2"} 50' in page
        took = 'slipway_rollout_request_duration_seconds_count{arm="candidate",model="scale",version="2"}'
        assert f"{took} {after['arms']['candidate']['latency']['total']}\n" in page
        assert 'slipway_rollout_breached{arm="candidate",model="scale",version="2"} 0' in page
        assert client.get(f"{server.http_url}/v2/slipway/models/nothing/traffic").status_code == 404
    with closing(Subscriber(server.metrics)) as subscriber:
        subscriber.next()
        report = next(one for one in subscriber.next()[1]["traffic"] if one["model"] == "scale")
        assert report["arms"]["stable"]["requests"] >= after["arms"]["stable"]["requests"]
        assert wait_until(lambda: subscriber.next()[1]["traffic"] == [], what="an event without a change")


def test_one_version_makes_all_choices_of_a_completion_and_is_named(server: ServerProcess) -> None:
    def counts() -> dict[str, int]:
        return {name: arm["requests"] for name, arm in server.get(path)[1]["arms"].items()}

    path, versions = "/v2/slipway/models/echo/traffic", {"stable": "1", "candidate": "2"}
    found: dict[str, set[str]] = {}
    for user in (*USERS[:8], *USERS[:8]):
        before = counts()
        body = {"model": "echo", "prompt": ["a", "b"], "n": 3, "user": user}
        answer = server.post("/v1/completions", body)[1]
        grown = {name: count - before[name] for name, count in counts().items() if count > before[name]}
        ((arm, count),) = grown.items()
        assert (count, answer["model"]) == (6, f"echo@{versions[arm]}")
        found.setdefault(user, set()).add(arm)
    assert all(len(arms) == 1 for arms in found.values())
    assert {arm for arms in found.values() for arm in arms} == {"stable", "candidate"}


def test_log_and_traces_say_version_and_arm(server: ServerProcess) -> None:
    names = {version(server, "http", user, request_id=f"log-{user}"): user for user in USERS}
    folder = server.repositories[0].parent

    def lines() -> dict[str, Any]:
        found = [json.loads(line) for line in (folder / "requests.log").read_text().splitlines()]
        by_id = {line["id"]: line for line in found}
        return {number: by_id[f"log-{user}"] for number, user in names.items() if f"log-{user}" in by_id}

    wait_until(lambda: len(lines()) == 2, what="the lines of the request log")
    assert {number: (line["version"], line["arm"]) for number, line in lines().items()} == {
        "1": ("1", "stable"),
        "2": ("2", "candidate"),
    }
    named = version(server, "http", "", model_version="2", request_id="named")
    assert named == "2"

    def heads() -> list[dict[str, Any]]:
        files: list[Path] = list(folder.glob("traces*"))
        return [
            row
            for file in files
            for row in json.loads(file.read_text())
            if row.get("request_id", "").startswith("log-")
        ]

    wait_until(lambda: {head.get("arm") for head in heads()} == {"stable", "candidate"}, what="the traces")
    assert {(head["model_version"], head["arm"]) for head in heads()} == {(1, "stable"), (2, "candidate")}
