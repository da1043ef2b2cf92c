"""The trace level TENSORS with the stock clients: what went into each model and came out of it."""

import csv
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.e2e.tracing_server import Setting, X, clear, heads, tensors, traced, tracing_server
from tests.support.serving_process import ServerProcess


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with tracing_server(tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("traces")) as setting:
        yield setting


@pytest.fixture
def server(setting: Setting) -> ServerProcess:
    return setting.server


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    with client_of(server, request.param) as client:
        yield client
        clear(client)


@pytest.mark.parametrize(
    ("model", "array", "data"),
    [
        ("scale", np.array([[2.5], [-1]], np.float32), ["2.5", "-1.0"]),
        ("identity_FP16", np.array([[0.5]], np.float16), ["0.5"]),
        ("identity_BOOL", np.array([[True], [False]]), ["1", "0"]),
        ("large", np.array([[np.nan, np.inf, 1]], np.float32), ["nan", "inf", "1.0"]),
        ("identity_BYTES", np.array([[b'a "b", c'], ["é".encode()]], np.object_), ['a "b", c', "é"]),
    ],
)
def test_tensors_are_written_as_they_come_and_go(
    client: TritonClient, setting: Setting, model: str, array: Any, data: list[str]
) -> None:
    rows = traced(client, setting.file, lambda: client.infer(model, {"INPUT0": array}), levels=("TENSORS",))
    given = tensors(rows, "TENSOR_QUEUE_INPUT")["INPUT0"]
    assert next(csv.reader([given["data"]], skipinitialspace=True)) == data
    assert given["shape"] == ",".join(map(str, array.shape))
    assert given["dtype"] == (model.partition("_")[2] or "FP32")
    answered = tensors(rows, "TENSOR_BACKEND_OUTPUT")["OUTPUT0"]
    if model != "scale":
        assert answered == given | {"name": "OUTPUT0"}
    assert not [row for row in rows if "timestamps" in row], "that is another level"
    assert [row["model_name"] for row in heads(rows).values()] == [model]


def test_a_large_tensor_is_cut(client: TritonClient, setting: Setting) -> None:
    array = np.arange(200_000, dtype=np.float32).reshape(1, -1)
    rows = traced(client, setting.file, lambda: client.infer("large", {"INPUT0": array}), levels=("TENSORS",))
    for activity, name in (("TENSOR_QUEUE_INPUT", "INPUT0"), ("TENSOR_BACKEND_OUTPUT", "OUTPUT0")):
        tensor = tensors(rows, activity)[name]
        values = [float(value) for value in tensor["data"].split(",")]
        assert tensor["whole_shape"] == "1,200000"
        assert int(tensor["shape"]) == len(values) < 200_000
        assert values == list(range(len(values)))


def test_tensors_of_an_ensemble_are_those_of_each_model(client: TritonClient, setting: Setting) -> None:
    rows = traced(client, setting.file, lambda: client.infer("twice", X), levels=("TENSORS", "TIMESTAMPS"))
    flow = {
        (activity, name, tensor["data"])
        for activity in ("TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT")
        for identifier in heads(rows)
        for name, tensor in tensors(rows, activity, identifier).items()
    }
    assert flow == {
        ("TENSOR_QUEUE_INPUT", "INPUT0", "2.0"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", "6.0"),
        ("TENSOR_QUEUE_INPUT", "INPUT0", "6.0"),
        ("TENSOR_BACKEND_OUTPUT", "OUTPUT0", "18.0"),
        ("TENSOR_BACKEND_OUTPUT", "OUT", "18.0"),
    }


def test_a_backend_is_given_the_controls_and_the_state_of_a_sequence_too(
    client: TritonClient, setting: Setting
) -> None:
    identifier = 7 + len(client.protocol)
    ask: dict[str, Any] = {"sequence_id": identifier, "sequence_start": True, "sequence_end": True}
    inputs = {"INPUT": np.array([[2]], np.float32)}
    rows = traced(client, setting.file, lambda: client.infer("sequence_sum", inputs, **ask), levels=("TENSORS",))
    assert set(tensors(rows, "TENSOR_QUEUE_INPUT")) == {"INPUT"}
    given = tensors(rows, "TENSOR_BACKEND_INPUT")
    assert given
    assert "INPUT" not in given
