"""The classification extension with the stock clients: the highest values of an output, by index and label."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import Tensor, TritonClient
from tests.e2e.clients.tritonclient_suite import sample
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import ONNX_TYPES, onnx_identity, write_config
from tests.support.serving_process import ServerProcess

CONFIG = """name: "{name}" backend: "onnxruntime" max_batch_size: {batch}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 label_filename: "{labels}" }}
"""
ENSEMBLE = """name: "{name}" platform: "ensemble" max_batch_size: 4
input {{ name: "IN" data_type: TYPE_FP32 dims: 4 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 4 {labels} }}
ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 input_map {{ key: "{source}" value: "IN" }}
  output_map {{ key: "OUTPUT0" value: "OUTPUT0" }} }} }}
"""
NUMERIC = [name for name in ONNX_TYPES if name not in ("BYTES", "BOOL")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for datatype in ONNX_TYPES:
        onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
    onnx_identity(repository, "fruit", "FP32", [4], max_batch_size=4)
    write_config(repository / "fruit", CONFIG.format(name="fruit", batch=4, labels="labels.txt"))
    (repository / "fruit" / "labels.txt").write_text("apple\npear\ncherry: sour\n")
    onnx_identity(repository, "plain", "FP32", [4], max_batch_size=0)
    (repository / "plain" / "labels.txt").write_text("a\nb\nc\nd\n")
    write_config(repository / "plain", CONFIG.format(name="plain", batch=0, labels="labels.txt"))
    onnx_identity(repository, "unlabelled", "FP32", [4], max_batch_size=4)
    write_config(repository / "unlabelled", CONFIG.format(name="unlabelled", batch=4, labels="none.txt"))
    for name, step, source, labels in (
        ("heir", "fruit", "INPUT0", ""),
        ("grandchild", "heir", "IN", ""),
        ("own", "heir", "IN", 'label_filename: "labels.txt"'),
    ):
        write_config(repository / name, ENSEMBLE.format(name=name, step=step, source=source, labels=labels))
        (repository / name / "1").mkdir()
    (repository / "own" / "labels.txt").write_text("A\nB\nC\nD\n")
    loaded = [f"--load-model={folder.name}" for folder in repository.iterdir() if folder.name != "unlabelled"]
    with ServerProcess(repository, "--model-control-mode=explicit", *loaded) as server:
        yield server
        assert "Traceback" not in server.log


def classes(client: TritonClient, model: str, array: Any, count: int, source: str = "INPUT0") -> list[Any]:
    wanted = [client.library.InferRequestedOutput("OUTPUT0", class_count=count)]
    result = client.call("infer", model, client.tensors({source: array}), outputs=wanted)
    found = result.as_numpy("OUTPUT0")
    answer = result.get_output("OUTPUT0")
    assert (answer["datatype"] if client.protocol == "http" else answer.datatype) == "BYTES"
    return [one.decode() if isinstance(one, bytes) else one for one in found.reshape(-1).tolist()] + [found.shape]


def test_the_highest_values_come_with_index_and_label(client: TritonClient) -> None:
    array = np.array([[0.1, 0.7, 0.2, -4]], np.float32)
    assert classes(client, "fruit", array, 3) == [
        "0.700000:1:pear",
        "0.200000:2:cherry: sour",
        "0.100000:0:apple",
        (1, 3),
    ]


def test_each_row_of_a_batch_has_its_own(client: TritonClient) -> None:
    array = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], np.float32)
    assert classes(client, "fruit", array, 1) == ["3.000000:3", "3.000000:0:apple", (2, 1)]


def test_a_model_without_batches_has_no_batch_dimension(client: TritonClient) -> None:
    assert classes(client, "plain", np.array([5, 6, 8, 7], np.float32), 2) == ["8.000000:2:c", "7.000000:3:d", (2,)]


def test_more_classes_than_there_are_give_all(client: TritonClient) -> None:
    *found, shape = classes(client, "fruit", np.array([[4, 3, 2, 1]], np.float32), 1000)
    assert [one.split(":")[1] for one in found] == ["0", "1", "2", "3"]
    assert shape == (1, 4)


def test_equal_values_keep_the_order_of_their_indexes(client: TritonClient) -> None:
    for count in (1, 2, 3, 4):
        *found, _ = classes(client, "fruit", np.array([[1, 2, 1, 2]], np.float32), count)
        assert [one.split(":")[1] for one in found] == ["1", "3", "0", "2"][:count]


@pytest.mark.parametrize("datatype", NUMERIC)
def test_every_numeric_datatype_is_compared_by_its_values(client: TritonClient, datatype: str) -> None:
    array = sample(datatype)
    *found, shape = classes(client, f"identity_{datatype.lower()}", Tensor(array, datatype), 2)
    assert shape == (2, 2)
    for row in range(2):
        values = [int(value) if array.dtype.kind in "iu" else float(value) for value in array[row]]
        ranked = sorted(range(3), key=lambda index, values=values: -values[index])[:2]
        expected = [
            f"{values[index]}:{index}" if array.dtype.kind in "iu" else f"{values[index]:f}:{index}" for index in ranked
        ]
        assert found[2 * row : 2 * row + 2] == expected


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_what_has_no_order_is_refused(client: TritonClient, datatype: str) -> None:
    wanted = [client.library.InferRequestedOutput("OUTPUT0", class_count=1)]
    inputs = client.tensors({"INPUT0": Tensor(sample(datatype), datatype)})
    message = refused(
        client, "INVALID_ARG", client.call, "infer", f"identity_{datatype.lower()}", inputs, outputs=wanted
    )
    assert f"unsupported type '{datatype}'" in message


@pytest.mark.parametrize(
    ("ensemble", "expected"),
    [("heir", "pear"), ("grandchild", "pear"), ("own", "B")],
    ids=["step", "step of step", "own"],
)
def test_an_ensemble_has_the_labels_of_the_step_that_makes_the_output_unless_it_names_its_own(
    client: TritonClient, ensemble: str, expected: str
) -> None:
    array = np.array([[1, 7, 2, 4]], np.float32)
    assert classes(client, ensemble, array, 1, source="IN")[0] == f"7.000000:1:{expected}"


def test_labels_of_a_reloaded_step_are_new_in_its_ensembles(server: ServerProcess, client: TritonClient) -> None:
    array = np.array([[1, 7, 2, 4]], np.float32)
    labels = server.repositories[0] / "fruit" / "labels.txt"
    before = labels.read_text()
    for text, expected in (("a\nnew\n", "new"), (before, "pear")):
        labels.write_text(text)
        assert server.post("/v2/repository/models/fruit/load")[0] == 200
        assert classes(client, "heir", array, 1, source="IN")[0] == f"7.000000:1:{expected}"


def test_an_output_that_is_named_twice_comes_once_as_it_was_asked_for_first(server: ServerProcess) -> None:
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [0, 9, 0, 0]}
    plain, classes = {"name": "OUTPUT0"}, {"name": "OUTPUT0", "parameters": {"classification": 1}}
    for outputs, expected in (([plain, classes], [0, 9, 0, 0]), ([classes, plain], ["9.000000:1:pear"])):
        status, answer = server.post("/v2/models/fruit/infer", {"inputs": [data], "outputs": outputs})
        assert (status, [output["data"] for output in answer["outputs"]]) == (200, [expected])


def test_json_shows_the_classes_as_strings(server: ServerProcess) -> None:
    data = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [0, 9, 0, 0]}
    body = {"inputs": [data], "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 1}}]}
    status, answer = server.post("/v2/models/fruit/infer", body)
    assert status == 200
    assert answer["outputs"] == [{"name": "OUTPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["9.000000:1:pear"]}]


def test_a_missing_label_file_is_told_when_the_model_loads(server: ServerProcess) -> None:
    status, answer = server.post("/v2/repository/models/unlabelled/load")
    assert status == 400
    assert "label_filename 'none.txt' of output 'OUTPUT0' cannot be read" in answer["error"]
