"""What every stock tritonclient client must see, over every route. `test_tritonclient_<kind>.py` runs it for one kind."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import Tensor, TritonClient
from tests.support.model_factory import ONNX_TYPES, onnx_add_sub, onnx_identity, onnx_scale, onnx_slow
from tests.support.serving_process import ServerProcess

ADD_SUB = {"INPUT0": np.array([[1, 2, 3, 4]], np.float32), "INPUT1": np.array([[4, 3, 2, 1]], np.float32)}
ONE = {"INPUT0": np.array([[3]], np.float32)}
JSON_TYPES = [name for name in ONNX_TYPES if name not in ("FP16", "BF16")]


def sample(datatype: str) -> np.ndarray:
    """Shape [2, 3], the extremes of the datatype included; BYTES are UTF-8, as ONNX strings must be."""
    if datatype == "BYTES":
        return np.array([[b"", b"abc", b"\x00\n"], ["schön".encode(), b"x" * 300, b"1"]], np.object_)
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    if datatype in ("BF16", "FP16", "FP32", "FP64"):
        dtype = {"BF16": ml_dtypes.bfloat16, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype]
        return np.array([[0, -0.5, 1.5], [256, -1024, 0.125]], dtype)
    dtype = np.dtype(datatype.lower())
    limits = np.iinfo(dtype)
    return np.array([[limits.min, limits.max, 0], [1, 2, 3]], dtype)


class TritonclientSuite:
    kind: ClassVar[str]

    # -- one server and one client for the class ---------------------------------------------------------------------
    @pytest.fixture(scope="class")
    @classmethod
    def repository(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        repository = tmp_path_factory.mktemp("models")
        for datatype in ONNX_TYPES:
            onnx_identity(repository, f"identity_{datatype.lower()}", datatype)
        onnx_add_sub(repository)
        onnx_identity(repository, "plain", "FP32", max_batch_size=0)
        onnx_slow(repository, extra="dynamic_batching { priority_levels: 2 default_priority_level: 1 }")
        for version in (1, 2, 3):
            onnx_scale(repository, "scale", float(version), version=version, extra="version_policy { all {} }")
        onnx_scale(repository, "spare", 5.0)
        return repository

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, repository: Path) -> Iterator[ServerProcess]:
        names = [folder.name for folder in repository.iterdir() if folder.name != "spare"]
        flags = [f"--load-model={name}" for name in names]
        with ServerProcess(repository, "--model-control-mode=explicit", *flags) as server:
            yield server
            assert "Traceback" not in server.log

    @pytest.fixture(scope="class")
    @classmethod
    def client(cls, server: ServerProcess) -> Iterator[TritonClient]:
        client = TritonClient(cls.kind, server.http if cls.kind.startswith("http") else server.grpc)
        yield client
        client.close()

    def refused(
        self, client: TritonClient, code: str, words: str, model: str, inputs: Any, *rest: Any, **kw: Any
    ) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, inputs, *rest, **kw)
        assert caught.value.status() == client.status(code), caught.value.message()
        assert words in caught.value.message()

    # -- health ------------------------------------------------------------------------------------------------------
    def test_the_server_is_live_and_ready(self, client: TritonClient) -> None:
        assert client.call("is_server_live") is True
        assert client.call("is_server_ready") is True

    @pytest.mark.parametrize("version", ["", "1", "3"])
    def test_a_loaded_model_is_ready_with_and_without_its_version(self, client: TritonClient, version: str) -> None:
        assert client.call("is_model_ready", "scale", version) is True

    @pytest.mark.parametrize(("name", "version"), [("nope", ""), ("scale", "9"), ("spare", "")])
    def test_what_is_unknown_or_not_loaded_is_not_ready(self, client: TritonClient, name: str, version: str) -> None:
        assert client.call("is_model_ready", name, version) is False

    # -- descriptions ------------------------------------------------------------------------------------------------
    def test_the_server_describes_itself(self, client: TritonClient) -> None:
        described = client.described("get_server_metadata")
        assert described["name"] == "slipway"
        assert described["version"]
        assert {"binary_tensor_data", "statistics", "model_repository"} <= set(described["extensions"])

    @pytest.mark.parametrize("version", ["", "1"])
    def test_a_model_describes_its_tensors(self, client: TritonClient, version: str) -> None:
        described = client.described("get_model_metadata", "add_sub", version)
        assert described["name"] == "add_sub"
        assert described["versions"] == ["1"]
        assert [tensor["name"] for tensor in described["inputs"]] == ["INPUT0", "INPUT1"]
        assert [tensor["name"] for tensor in described["outputs"]] == ["OUTPUT0", "OUTPUT1"]
        for tensor in described["inputs"] + described["outputs"]:
            assert tensor["datatype"] == "FP32"
            assert [int(dim) for dim in tensor["shape"]] == [-1, 4]

    def test_a_model_names_all_its_versions(self, client: TritonClient) -> None:
        assert client.described("get_model_metadata", "scale")["versions"] == ["1", "2", "3"]

    @pytest.mark.parametrize("version", ["", "1"])
    def test_a_models_configuration_is_told(self, client: TritonClient, version: str) -> None:
        config = client.described("get_model_config", "add_sub", version)
        assert (config["name"], config["backend"], config["max_batch_size"]) == ("add_sub", "onnxruntime", 8)
        assert config["input"][0]["data_type"] == "TYPE_FP32"
        assert [int(dim) for dim in config["input"][0]["dims"]] == [4]
        assert config["instance_group"][0]["count"] >= 1

    @pytest.mark.parametrize("method", ["get_model_metadata", "get_model_config", "get_inference_statistics"])
    @pytest.mark.parametrize(("name", "version"), [("nope", ""), ("scale", "9")])
    def test_what_is_unknown_cannot_be_described(
        self, client: TritonClient, method: str, name: str, version: str
    ) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.call(method, name, version)
        assert caught.value.status() == client.status("NOT_FOUND")
        assert name in caught.value.message()

    def test_statistics_count_what_was_inferred(self, client: TritonClient) -> None:
        def counted() -> tuple[int, int]:
            (row,) = client.described("get_inference_statistics", "add_sub", "1")["model_stats"]
            return int(row.get("inference_count", 0)), int(row["inference_stats"]["success"].get("count", 0))

        inferences, requests = counted()
        client.infer("add_sub", {name: np.repeat(array, 3, 0) for name, array in ADD_SUB.items()})
        assert counted() == (inferences + 3, requests + 1)

    def test_statistics_of_all_models_name_each_version(self, client: TritonClient) -> None:
        rows = client.described("get_inference_statistics")["model_stats"]
        assert {("scale", "1"), ("scale", "2"), ("scale", "3"), ("plain", "1")} <= {
            (row["name"], row["version"]) for row in rows
        }

    # -- inference: datatypes ----------------------------------------------------------------------------------------
    @pytest.mark.parametrize("datatype", ONNX_TYPES)
    def test_every_datatype_passes_unchanged(self, client: TritonClient, datatype: str) -> None:
        array = sample(datatype)
        answer = client.infer(f"identity_{datatype.lower()}", {"INPUT0": Tensor(array, datatype)})
        assert answer.outputs["OUTPUT0"].dtype == array.dtype
        assert answer.outputs["OUTPUT0"].tolist() == array.tolist()

    @pytest.mark.parametrize("shape", [(1, 0), (8, 1), (1, 200_000)])
    def test_empty_and_large_tensors_pass(self, client: TritonClient, shape: tuple[int, int]) -> None:
        array = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
        answer = client.infer("identity_fp32", {"INPUT0": array}).outputs["OUTPUT0"]
        assert answer.shape == shape
        assert np.array_equal(answer, array)

    def test_a_model_without_a_batch_dimension_takes_any_shape_it_declares(self, client: TritonClient) -> None:
        array = np.arange(5, dtype=np.float32)
        assert client.infer("plain", {"INPUT0": array}).outputs["OUTPUT0"].tolist() == array.tolist()

    # -- inference: what is asked ------------------------------------------------------------------------------------
    def test_several_inputs_and_outputs_keep_their_names(self, client: TritonClient) -> None:
        answer = client.infer("add_sub", ADD_SUB)
        assert list(answer.outputs) == ["OUTPUT0", "OUTPUT1"]
        assert answer.outputs["OUTPUT0"].tolist() == [[5, 5, 5, 5]]
        assert answer.outputs["OUTPUT1"].tolist() == [[-3, -1, 1, 3]]

    @pytest.mark.parametrize("names", [["OUTPUT0"], ["OUTPUT1"], ["OUTPUT0", "OUTPUT1"], ["OUTPUT1", "OUTPUT0"]])
    def test_only_the_requested_outputs_come(self, client: TritonClient, names: list[str]) -> None:
        assert set(client.infer("add_sub", ADD_SUB, names).outputs) == set(names)

    @pytest.mark.parametrize("identifier", ["7", "a-request", "ünïcode ✓"])
    def test_the_request_id_comes_back(self, client: TritonClient, identifier: str) -> None:
        assert client.infer("add_sub", ADD_SUB, request_id=identifier).id == identifier

    @pytest.mark.parametrize(("version", "expected"), [("1", 3), ("2", 6), ("3", 9), ("", 9)])
    def test_each_version_answers_and_the_latest_where_none_is_named(
        self, client: TritonClient, version: str, expected: float
    ) -> None:
        answer = client.infer("scale", ONE, model_version=version)
        assert answer.outputs["OUTPUT0"].tolist() == [[expected]]
        assert (answer.model_name, answer.model_version) == ("scale", version or "3")

    @pytest.mark.parametrize("rows", [1, 2, 5, 8])
    def test_a_request_may_be_a_batch(self, client: TritonClient, rows: int) -> None:
        array = np.arange(rows, dtype=np.float32).reshape(rows, 1)
        assert client.infer("scale", {"INPUT0": array}).outputs["OUTPUT0"].tolist() == (array * 3).tolist()

    @pytest.mark.parametrize(
        "options",
        [
            {"parameters": {"text": "x", "number": 5, "flag": True}},
            {"priority": 2},
            {"timeout": 10_000_000},
            {"headers": {"x-trace": "abc"}},
        ],
        ids=["parameters", "priority", "timeout", "headers"],
    )
    def test_options_of_a_request_are_taken(self, client: TritonClient, options: dict[str, Any]) -> None:
        given = copy.deepcopy(options)  # the HTTP client writes into the headers that it is given
        assert client.infer("slow", ONE, **given).outputs["OUTPUT0"].tolist() == [[3]]

    def test_many_requests_at_once_each_get_their_own_answer(self, client: TritonClient) -> None:
        requests = [{"INPUT0": np.array([[number]], np.float32)} for number in range(40)]
        answers = client.many("scale", requests)
        assert [answer.outputs["OUTPUT0"].tolist() for answer in answers] == [[[number * 3]] for number in range(40)]

    # -- inference: what is wrong ------------------------------------------------------------------------------------
    def test_an_unknown_model_or_version_is_not_found(self, client: TritonClient) -> None:
        self.refused(client, "NOT_FOUND", "nope", "nope", ONE)
        self.refused(client, "NOT_FOUND", "scale", "scale", ONE, model_version="9")

    @pytest.mark.parametrize(
        ("inputs", "words"),
        [
            ({"WRONG": ADD_SUB["INPUT0"], "INPUT1": ADD_SUB["INPUT1"]}, "INPUT0"),
            ({"INPUT0": ADD_SUB["INPUT0"]}, "input"),
            ({**ADD_SUB, "INPUT2": ADD_SUB["INPUT0"]}, "INPUT2"),
            ({**ADD_SUB, "INPUT0": ADD_SUB["INPUT0"].astype(np.float64)}, "FP64"),
            ({**ADD_SUB, "INPUT0": np.zeros((1, 5), np.float32)}, "INPUT0"),
            ({**ADD_SUB, "INPUT0": np.zeros((4,), np.float32)}, "INPUT0"),
            ({name: np.zeros((9, 4), np.float32) for name in ADD_SUB}, "8"),
            ({**ADD_SUB, "INPUT0": np.zeros((2, 4), np.float32)}, "batch"),
            ({**ADD_SUB, "INPUT0": Tensor(np.zeros((1, 4), np.float32), shape=[2, 4])}, "INPUT0"),
            ({**ADD_SUB, "INPUT0": Tensor(np.zeros((1, 4), np.float32), shape=[1, 1 << 40])}, "INPUT0"),
        ],
        ids=[
            "wrong name",
            "missing input",
            "extra input",
            "wrong datatype",
            "wrong shape",
            "missing dimension",
            "batch over the limit",
            "batches that differ",
            "too little data",
            "a huge shape",
        ],
    )
    def test_a_wrong_request_is_refused_with_the_reason(self, client: TritonClient, inputs: Any, words: str) -> None:
        self.refused(client, "INVALID_ARG", words, "add_sub", inputs)
        assert client.infer("add_sub", ADD_SUB).outputs

    def test_an_unknown_output_is_refused(self, client: TritonClient) -> None:
        self.refused(client, "INVALID_ARG", "OUTPUT9", "add_sub", ADD_SUB, ["OUTPUT9"])

    # -- repository --------------------------------------------------------------------------------------------------
    def test_the_index_names_every_model_and_its_state(self, client: TritonClient) -> None:
        index = client.described("get_model_repository_index")
        states = {(row["name"], row.get("version", "")): row.get("state", "") for row in index}
        assert states[("add_sub", "1")] == "READY"
        assert {states[("scale", version)] for version in "123"} == {"READY"}
        assert any(name == "spare" and state != "READY" for (name, _), state in states.items())

    def test_a_model_is_loaded_served_and_unloaded(self, client: TritonClient) -> None:
        client.call("load_model", "spare")
        assert client.call("is_model_ready", "spare") is True
        assert client.infer("spare", ONE).outputs["OUTPUT0"].tolist() == [[15]]
        client.call("load_model", "spare")
        client.call("unload_model", "spare")
        assert client.call("is_model_ready", "spare") is False
        with pytest.raises(InferenceServerException):
            client.infer("spare", ONE)

    def test_a_model_is_loaded_with_another_configuration_and_goes_back(self, client: TritonClient) -> None:
        client.call("load_model", "spare", config='{"max_batch_size": 3, "backend": "onnxruntime"}')
        assert client.described("get_model_config", "spare")["max_batch_size"] == 3
        self.refused(client, "INVALID_ARG", "3", "spare", {"INPUT0": np.zeros((4, 1), np.float32)})
        client.call("load_model", "spare")
        assert client.described("get_model_config", "spare")["max_batch_size"] == 3  # holds until it is unloaded
        client.call("unload_model", "spare", unload_dependents=True)
        client.call("load_model", "spare")
        assert client.described("get_model_config", "spare")["max_batch_size"] == 8
        client.call("unload_model", "spare")

    def test_a_model_is_loaded_from_files_in_the_request(self, client: TritonClient, repository: Path) -> None:
        content = (repository / "scale" / "2" / "model.onnx").read_bytes()
        config = '{"max_batch_size": 8, "backend": "onnxruntime"}'
        client.call("load_model", "spare", config=config, files={"file:1/model.onnx": content})
        assert client.infer("spare", ONE).outputs["OUTPUT0"].tolist() == [[6]]
        client.call("unload_model", "spare")

    @pytest.mark.parametrize("config", ["{", '{"max_batch_size": "many"}', '{"no_such_field": 1}'])
    def test_a_wrong_configuration_is_refused_and_nothing_changes(self, client: TritonClient, config: str) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.call("load_model", "add_sub", config=config)
        assert caught.value.status() == client.status("INVALID_ARG"), caught.value.message()
        assert client.infer("add_sub", ADD_SUB).outputs

    def test_an_unknown_model_cannot_be_loaded(self, client: TritonClient) -> None:
        with pytest.raises(InferenceServerException) as caught:
            client.call("load_model", "nope")
        assert "nope" in caught.value.message()
