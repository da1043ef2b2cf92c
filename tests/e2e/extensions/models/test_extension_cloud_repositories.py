"""A model repository in S3, beside one on disk, with the stock clients; the interface is moto's, on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.support.model_factory import onnx_scale
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.serving_process import ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-bucket",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
FLAGS = ("--model-control-mode=explicit", "--repository-poll-secs=0.1", "--load-model=local")


class Setting(NamedTuple):
    server: ServerProcess
    store: ObjectStore
    folder: Path  # where the test makes models


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    local, cache = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("cache")
    onnx_scale(local, "local", 7.0)
    with ObjectStore() as store:
        store.put_folder(onnx_scale(tmp_path_factory.mktemp("first"), "first"), "production/first")
        address = f"s3://127.0.0.1:{store.port}/{BUCKET}/production/"
        flags = (f"--model-repository={address}", f"--repository-cache-folder={cache}", *FLAGS)
        with ServerProcess(local, *flags, environment={**CREDENTIALS, "HOME": str(cache)}) as server:
            yield Setting(server, store, tmp_path_factory.mktemp("made"))
            assert "secret-of-the-bucket" not in server.log


@pytest.fixture(params=PROTOCOLS)
def client(setting: Setting, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(setting.server, request.param) as client:
        yield client


def publish(setting: Setting, name: str, factor: float, version: int = 1) -> None:
    setting.store.put_folder(onnx_scale(setting.folder, name, factor, version=version), f"production/{name}")


def factor(client: TritonClient, model: str) -> float:
    return float(client.infer(model, ONE).outputs["OUTPUT0"][0, 0])


def names(client: TritonClient) -> set[str]:
    return {row["name"] for row in client.described("get_model_repository_index")}


def test_a_model_of_the_bucket_is_listed_loaded_replaced_and_unloaded(client: TritonClient, setting: Setting) -> None:
    model = f"of_{client.protocol}"
    publish(setting, model, 2.0)
    wait_until(lambda: model in names(client), what="the model in the index")
    client.call("load_model", model)
    assert (factor(client, model), factor(client, "local")) == (2, 7)
    publish(setting, model, 3.0, version=2)
    client.call("load_model", model)
    assert factor(client, model) == 3
    assert client.described("get_model_metadata", model)["versions"] == ["2"]
    client.call("unload_model", model)
    wait_until(lambda: not client.call("is_model_ready", model), what="the end of the model")


def test_what_is_not_in_the_bucket_is_not_found(client: TritonClient) -> None:
    assert "'nope'" in refused(client, "NOT_FOUND", client.call, "load_model", "nope")


def test_a_name_that_is_in_both_repositories_is_refused(client: TritonClient, setting: Setting) -> None:
    model = f"twice_{client.protocol}"
    publish(setting, model, 2.0)
    wait_until(lambda: model in names(client), what="the model of the bucket in the index")
    onnx_scale(setting.server.repositories[0], model, 3.0)
    assert f"'{model}'" in refused(client, "INVALID_ARG", client.call, "load_model", model)
    assert factor(client, "local") == 7
