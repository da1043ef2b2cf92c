"""`slipway.release` and `slipway.aliases` with the stock clients: an alias stands wherever a version may, and the server says
which release each version serves. On a server without and with frontend workers."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import calls_to, refused
from tests.e2e.gated_model import GatedModel
from tests.e2e.text_generator import markov
from tests.support.model_factory import onnx_scale, python_model
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
BOTH = "version_policy { all {} }"


def stamp(release: int | None = None, more: str = "", **aliases: int) -> str:
    values = {"slipway.release": release, "slipway.aliases": aliases or None}
    texts = {key: json.dumps(json.dumps(value)) for key, value in values.items() if value is not None}
    entries = [f'parameters {{ key: "{key}" value {{ string_value: {text} }} }}' for key, text in texts.items()]
    return "\n".join([*entries, more])


def two_versions(repository: Path, name: str, extra: str) -> Path:
    onnx_scale(repository, name, 10.0, version=1)
    return onnx_scale(repository, name, 20.0, version=2, extra=extra)


ASKS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            ready = pb_utils.is_model_ready("aliased", "champion"), pb_utils.is_model_ready("aliased", "9")
            import numpy as np
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array(ready))]) for _ in requests]
"""
ASKS_CONFIG = 'name: "asks" backend: "python" output [ { name: "OUTPUT0" data_type: TYPE_BOOL dims: [ 2 ] } ]'


@pytest.fixture(scope="module", params=[(), ("--frontend-workers=2",)], ids=["one process", "workers"])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    two_versions(models, "aliased", stamp(7, BOTH, champion=1, candidate=2))
    two_versions(models, "default", stamp(3, BOTH, default=1))
    two_versions(models, "moved", stamp(1, BOTH, champion=1))
    two_versions(models, "broken", stamp(4, champion=2))
    onnx_scale(models, "plain")
    markov(models)
    shutil.copytree(models / "markov", models / "speaker")
    config = models / "speaker" / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "markov"', 'name: "speaker"') + stamp(2, champion=1))
    python_model(models, "asks", ASKS, ASKS_CONFIG)
    flags = ("--model-control-mode=explicit", "--load-model=*", *request.param)
    with ServerProcess(models, *flags) as server:
        yield server
        assert "Traceback" not in server.log


def factor(client: TritonClient, model: str, version: str = "") -> tuple[float, str]:
    found = client.infer(model, ONE, model_version=version)
    return found.outputs["OUTPUT0"].item(), found.model_version


def rows(server: ServerProcess, name: str) -> dict[str, dict[str, Any]]:
    status, found = server.post("/v2/repository/index")
    assert status == 200
    return {row.get("version", ""): row for row in found if row["name"] == name}


def reported(server: ServerProcess, name: str, *keys: str) -> dict[str, tuple[Any, ...]]:
    return {version: tuple(row.get(key) for key in keys) for version, row in rows(server, name).items()}


def load(server: ServerProcess, name: str) -> tuple[int, Any]:
    return server.post(f"/v2/repository/models/{name}/load")


# -- aliases -----------------------------------------------------------------------------------------------------------
def test_an_alias_stands_for_a_version_in_every_request(client: TritonClient) -> None:
    assert factor(client, "aliased", "champion") == (10.0, "1")
    assert factor(client, "aliased", "candidate") == (20.0, "2")
    assert factor(client, "aliased", "1") == (10.0, "1")
    assert factor(client, "aliased") == (20.0, "2")


def test_default_answers_where_no_version_is_named(client: TritonClient) -> None:
    assert factor(client, "default") == (10.0, "1")
    assert factor(client, "default", "default") == (10.0, "1")
    assert factor(client, "default", "-1") == (10.0, "1")
    assert factor(client, "default", "2") == (20.0, "2")


def test_metadata_configuration_readiness_and_statistics_take_an_alias(client: TritonClient) -> None:
    assert client.call("is_model_ready", "aliased", "champion") is True
    assert client.call("is_model_ready", "missing", "champion") is False
    if client.protocol == "grpc":  # over HTTP the status says "not ready", whatever the reason
        refused(client, "INVALID_ARG", client.call, "is_model_ready", "aliased", "nobody")
    assert client.described("get_model_metadata", "aliased", "champion")["inputs"][0]["name"] == "INPUT0"
    assert "slipway.release" in str(client.described("get_model_config", "aliased", "champion"))
    found = client.described("get_inference_statistics", "aliased", "champion")["model_stats"]
    assert [row["version"] for row in found] == ["1"]


def test_an_unknown_alias_is_refused_with_those_that_there_are(client: TritonClient) -> None:
    said = refused(client, "INVALID_ARG", client.infer, "aliased", ONE, model_version="nobody")
    assert "'nobody': expected a positive number or an alias: candidate, champion" in said
    assert "or an alias" not in refused(client, "INVALID_ARG", client.infer, "plain", ONE, model_version="nobody")


def test_the_routes_that_generate_take_an_alias(server: ServerProcess) -> None:
    status, found = server.post("/v2/models/aliased/versions/champion/generate", {"INPUT0": 3.0})
    assert (status, found["OUTPUT0"], found["model_version"]) == (200, 30.0, "1")
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["markov", "speaker", "speaker@champion"]
        assert client.models.retrieve("speaker@champion").id == "speaker@champion"
        for asked, answered in (("speaker@champion", "speaker@1"), ("speaker@1", "speaker@1"), ("speaker", "speaker")):
            found = client.completions.create(model=asked, prompt="the ", max_tokens=3)
            assert (found.model, len(found.choices[0].text)) == (answered, 3)
        for unknown in ("speaker@2", "nobody@champion"):
            with pytest.raises(openai.NotFoundError):
                client.completions.create(model=unknown, prompt="the ")


def test_a_python_model_asks_for_readiness_by_alias(client: TritonClient) -> None:
    assert client.infer("asks", {}).outputs["OUTPUT0"].tolist() == [True, False]


# -- what the server tells ---------------------------------------------------------------------------------------------
def test_the_index_tells_release_and_aliases_of_each_version(server: ServerProcess) -> None:
    assert reported(server, "aliased", "release", "aliases") == {"1": (7, ["champion"]), "2": (7, ["candidate"])}
    assert not {"release", "aliases"} & rows(server, "plain")["1"].keys()


def test_statistics_and_metrics_tell_the_release(server: ServerProcess) -> None:
    found = server.get("/v2/models/aliased/stats")[1]["model_stats"]
    assert [(row["version"], row["release"]) for row in found] == [("1", 7), ("2", 7)]
    assert "release" not in server.get("/v2/models/plain/stats")[1]["model_stats"][0]
    text = httpx.get(server.metrics_url, timeout=PATIENCE_S).text
    assert 'slipway_model_release{model="aliased",version="1"} 7\n' in text
    assert 'slipway_model_release{model="plain"' not in text


def feed_rows(server: ServerProcess) -> dict[tuple[str, str], dict[str, Any]]:
    with httpx.stream("GET", f"http://{server.metrics}/v2/slipway/live", timeout=60) as response:
        for line in response.iter_lines():
            if line.startswith("data: ") and '"models":[' in line:
                return {(row["name"], row["version"]): row for row in json.loads(line[6:])["models"]}
    raise AssertionError("the feed ended")


def test_the_live_feed_tells_release_and_aliases(server: ServerProcess) -> None:
    found = feed_rows(server)
    assert (found["aliased", "1"]["release"], found["aliased", "1"]["aliases"]) == (7, ["champion"])
    assert "release" not in found["plain", "1"]


# -- changes -----------------------------------------------------------------------------------------------------------
def test_an_alias_of_a_version_that_does_not_serve_keeps_a_model_from_loading(server: ServerProcess) -> None:
    assert reported(server, "broken", "state", "release") == {"2": ("READY", 4)}
    folder = Path(server.repositories[0])
    two_versions(folder, "broken", stamp(5, champion=1))
    status, answer = load(server, "broken")
    assert status == 400
    assert "alias 'champion' names version 1, which the version policy does not serve (it serves 2)" in answer["error"]
    row = rows(server, "broken")["2"]
    assert (row["state"], row["release"], row["failed"]) == ("READY", 4, True)
    assert "what was loaded before keeps serving" in row["reason"]
    two_versions(folder, "broken", stamp(4, champion=2))
    assert load(server, "broken")[0] == 200


def test_a_release_that_moves_aliases_is_taken_in_place(server: ServerProcess, client: TritonClient) -> None:
    folder = Path(server.repositories[0]) / "moved" / "config.pbtxt"
    text = folder.read_text()
    assert factor(client, "moved", "champion") == (10.0, "1")
    before = server.log.count("ready")
    counted = client.described("get_inference_statistics", "moved", "1")["model_stats"][0]["inference_count"]
    folder.write_text(text.replace('"1"', '"2"').replace('\\"champion\\": 1', '\\"champion\\": 2, \\"default\\": 1'))
    assert load(server, "moved")[0] == 200
    assert reported(server, "moved", "release", "aliases") == {"1": (2, ["default"]), "2": (2, ["champion"])}
    assert factor(client, "moved", "champion") == (20.0, "2")
    assert factor(client, "moved") == (10.0, "1")
    found = client.described("get_inference_statistics", "moved", "1")["model_stats"][0]["inference_count"]
    assert int(found) == int(counted) + 1  # the instances and their counters went on
    assert server.log.count("ready") == before
    folder.write_text(text)
    assert load(server, "moved")[0] == 200
    assert reported(server, "moved", "release", "aliases") == {"1": (1, ["champion"]), "2": (1, None)}


def test_a_release_that_does_not_load_leaves_the_old_one_told(server: ServerProcess) -> None:
    folder = Path(server.repositories[0])
    onnx_scale(folder, "plain", extra=stamp(1))
    assert load(server, "plain")[0] == 200
    assert reported(server, "plain", "release", "failed") == {"1": (1, False)}
    onnx_scale(folder, "plain", extra=stamp(2))
    (folder / "plain" / "1" / "model.onnx").write_bytes(b"no model")
    assert load(server, "plain")[0] == 400
    assert reported(server, "plain", "release", "failed") == {"1": (1, True)}
    (folder / "plain" / "config.pbtxt").write_text("no configuration")
    assert load(server, "plain")[0] == 400
    assert reported(server, "plain", "release", "failed") == {"1": (1, True)}
    onnx_scale(folder, "plain")
    assert load(server, "plain")[0] == 200
    assert reported(server, "plain", "release", "failed") == {"1": (None, False)}


def test_a_configuration_that_a_load_request_brings_tells_its_own_release(
    server: ServerProcess, client: TritonClient
) -> None:
    config = json.loads(json.dumps(server.get("/v2/models/moved/config")[1]))
    config["parameters"]["slipway.release"] = {"string_value": "9"}
    config["version_policy"] = {"specific": {"versions": [1]}}
    client.call("load_model", "moved", config=json.dumps(config))
    assert {key: row for key, row in reported(server, "moved", "release").items() if key == "1"} == {"1": (9,)}
    client.call("unload_model", "moved")
    wait_until(lambda: rows(server, "moved")["1"]["state"] == "UNAVAILABLE", what="unloading")
    assert reported(server, "moved", "release", "aliases") == {"1": (None, None), "2": (None, None)}
    said = refused(client, "UNAVAILABLE", client.infer, "moved", ONE, model_version="champion")
    assert "version 1 is not at ready state: unloaded" in said
    client.call("load_model", "moved")
    assert reported(server, "moved", "release", "aliases") == {"1": (1, ["champion"]), "2": (1, None)}


# -- golden requests ---------------------------------------------------------------------------------------------------
def golden(expected: float, **more: Any) -> dict[str, Any]:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}
    outputs = [tensor | {"name": "OUTPUT0", "data": [expected]}]
    return {"name": "one", "request": {"inputs": [tensor]}, "expected": {"outputs": outputs}, **more}


def load_checked(server: ServerProcess, name: str, *checks: dict[str, Any]) -> tuple[int, Any]:
    parameters = {"slipway.golden": json.dumps(checks)}
    return server.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})


def test_a_load_tells_its_steps_and_stops_at_a_golden_request_that_fails(
    server: ServerProcess, client: TritonClient
) -> None:
    folder = Path(server.repositories[0])
    onnx_scale(folder, "golden", 4.0, extra=stamp(5))
    status, answer = load_checked(server, "golden", golden(4.0))
    assert (status, answer["release"]) == (200, 5)
    assert [step["step"] for step in answer["steps"]] == [
        "check",
        "memory",
        "load",
        "warm",
        "golden",
        "switch",
        "drain",
    ]
    assert all(step["ms"] >= 0 and "failed" not in step for step in answer["steps"])
    (check,) = answer["steps"][4]["checks"]
    assert (check["name"], check["version"], check["passed"], check["detail"]) == (
        "one",
        1,
        True,
        "all values are equal",
    )
    assert answer["steps"][6]["under_way"] == 0
    onnx_scale(folder, "golden", 5.0, extra=stamp(6))
    status, answer = load_checked(server, "golden", golden(4.0))
    assert status == 400
    assert "golden request 'one' failed: output 'OUTPUT0' is 5, expected 4" in answer["error"]
    assert [step["step"] for step in answer["steps"]] == ["check", "memory", "load", "warm", "golden"]
    assert answer["steps"][-1]["failed"] is True
    assert answer["steps"][-1]["checks"][0]["passed"] is False
    assert factor(client, "golden") == (4.0, "1")
    assert reported(server, "golden", "release", "loading") == {"1": (5, None)}
    assert load_checked(server, "golden", golden(4.0, tolerance={"absolute": 1}))[0] == 200
    assert factor(client, "golden") == (5.0, "1")
    assert reported(server, "golden", "release") == {"1": (6,)}
    assert load(server, "golden")[1] == {"release": 6, "steps": []}


def test_golden_requests_go_with_a_load_over_grpc_too(server: ServerProcess) -> None:
    onnx_scale(Path(server.repositories[0]), "over_grpc", 4.0)
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def load_with(text: str) -> None:
            request = service_pb2.RepositoryModelLoadRequest(model_name="over_grpc")
            request.parameters["slipway.golden"].string_param = text
            stub.RepositoryModelLoad(request)

        with pytest.raises(grpc.RpcError) as caught:
            load_with(json.dumps([golden(3.0)]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "is 4, expected 3" in caught.value.details()
        with pytest.raises(grpc.RpcError, match="every golden request as an object with a name"):
            load_with("[3]")
        load_with(json.dumps([golden(4.0)]))
    assert rows(server, "over_grpc")["1"]["state"] == "READY"


@pytest.mark.parametrize("value", ["{", 3, "[3]", json.dumps([golden(1.0, seconds=0)])])
def test_golden_requests_that_cannot_be_read_are_the_clients_mistake(server: ServerProcess, value: Any) -> None:
    status, answer = server.post("/v2/repository/models/plain/load", {"parameters": {"slipway.golden": value}})
    assert status == 400
    assert "golden" in answer["error"]


def test_the_drain_of_what_was_replaced_is_shown(server: ServerProcess, tmp_path: Path) -> None:
    """A request holds the old model while the new one serves already."""
    gated = GatedModel(Path(server.repositories[0]), tmp_path, extra=stamp(1))
    assert load(server, "gated")[0] == 200
    with calls_to(server, "http") as calls:
        call = calls.begin("gated", ONE, request_id="held")
        gated.wait_for("held")
        config = gated.repository / "gated" / "config.pbtxt"
        config.write_text(config.read_text().replace(stamp(1), stamp(2)))
        (gated.repository / "gated" / "1" / "model.py").touch()
        answer = load(server, "gated")[1]
        last = answer["steps"][-1]
        assert (answer["release"], last["step"], last["under_way"]) == (2, "drain", 1)
        shown = rows(server, "gated")["1"]
        assert (shown["release"], shown["loading"]) == (2, {"release": 2, "step": "drain", "done": 0, "of": 1})
        gated.open()
        assert call.result(PATIENCE_S).outputs["OUTPUT0"].item() == 1.0
    wait_until(lambda: "loading" not in rows(server, "gated")["1"], what="the end of the drain")
