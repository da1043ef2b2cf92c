"""`model_repository_agents`: the agent `checksum` lets a model load, or refuses it before its backend sees it."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.model_factory import onnx_scale, pass_on_ensemble
from tests.support.serving_process import ServerProcess


def expect(model: Path, *algorithms: str, file: str = "1/model.onnx", agent: str = "checksum") -> None:
    """Have the configuration ask for the digests that the file has now."""
    digests = [
        (algorithm, hashlib.new(algorithm, (model / file).read_bytes(), usedforsecurity=False).hexdigest())
        for algorithm in algorithms or ("MD5",)
    ]
    listed = " ".join(f'parameters {{ key: "{algorithm}:{file}" value: "{digest}" }}' for algorithm, digest in digests)
    with (model / "config.pbtxt").open("a") as config:
        config.write(f'\nmodel_repository_agents {{ agents {{ name: "{agent}" {listed} }} }}\n')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("models"), "--model-control-mode=explicit") as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A stock client; its `models` is the server's repository."""
    made = httpclient if request.param == "http" else grpcclient
    with made.InferenceServerClient(getattr(server, request.param)) as client:
        client.models, client.made = server.repositories[0], made
        yield client


def doubled(client: Any, model: str) -> float:
    tensor = client.made.InferInput("INPUT0", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    return float(client.infer(model, [tensor]).as_numpy("OUTPUT0")[0, 0])


def reason(client: Any, model: str) -> str:
    """What the repository index says of a model's version 1."""
    if client.made is httpclient:
        [row] = [row for row in client.get_model_repository_index() if row["name"] == model]
        return str(row.get("reason", ""))
    [row] = [row for row in client.get_model_repository_index().models if row.name == model]
    return str(row.reason)


def refused(client: Any, model: str) -> str:
    with pytest.raises(InferenceServerException) as caught:
        client.load_model(model)
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    return str(caught.value.message())


def test_a_model_whose_files_have_the_digests_that_it_asks_for_serves(client: Any) -> None:
    model = onnx_scale(client.models, "right", 2.0)
    expect(model, "MD5", "SHA256")
    client.load_model("right")
    assert doubled(client, "right") == 2.0


def test_a_wrong_digest_refuses_the_load_before_the_model_file_is_read(client: Any) -> None:
    model = onnx_scale(client.models, "wrong", 2.0)
    expect(model)
    (model / "1" / "model.onnx").write_bytes(b"not a model at all")
    reported = refused(client, "wrong")
    assert "repository agent 'checksum' refuses the model: the MD5 digest of '1/model.onnx' is " in reported
    assert "onnx" not in reported.lower().replace("1/model.onnx", "")
    assert str(client.models) not in reported
    assert reason(client, "wrong") in reported
    assert not client.is_model_ready("wrong")


def test_a_wrong_digest_refuses_every_version_and_is_told_once(client: Any) -> None:
    model = onnx_scale(client.models, "many", 2.0)
    onnx_scale(client.models, "many", 3.0, version=2, extra="version_policy { all { } }")
    expect(model, file="2/model.onnx")
    (model / "2" / "model.onnx").write_bytes(b"not a model at all")
    reported = refused(client, "many")
    assert "load failed for model 'many': version 1, 2 are at UNAVAILABLE state: repository agent" in reported
    assert reported.count("digest") == 1
    assert not client.is_model_ready("many", "1")


def test_what_was_loaded_before_keeps_serving_until_the_digest_is_right(client: Any) -> None:
    model = onnx_scale(client.models, "kept", 2.0)
    expect(model)
    client.load_model("kept")
    onnx_scale(client.models, "kept", 3.0, config=None)
    assert "MD5 digest" in refused(client, "kept")
    assert doubled(client, "kept") == 2.0
    assert "keeps serving: repository agent 'checksum'" in reason(client, "kept")
    onnx_scale(client.models, "kept", 3.0)
    expect(model)
    client.load_model("kept")
    assert doubled(client, "kept") == 3.0
    assert reason(client, "kept") == ""


def test_an_agent_that_there_is_not_is_an_error_that_names_those_there_are(client: Any) -> None:
    expect(onnx_scale(client.models, "unknown"), agent="decrypt")
    assert "there is no repository agent 'decrypt'; there is checksum" in refused(client, "unknown")


def test_an_ensemble_may_have_agents_too(client: Any) -> None:
    name = f"whole_{client.made.__name__.split('.')[1]}"
    onnx_scale(client.models, "step", 2.0, max_batch_size=4)
    whole = pass_on_ensemble(client.models, name, "step")
    (whole / "labels.txt").write_text("one\ntwo\n")
    expect(whole, file="labels.txt")
    client.load_model(name)
    assert doubled(client, name) == 2.0
    (whole / "labels.txt").write_text("other\n")
    assert "'labels.txt'" in refused(client, name)
