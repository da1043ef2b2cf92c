"""Large JSON is read and written in pieces, with the same result as whole, on another thread than the loop's."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from serving.core.errors import ServingError
from serving.core.response import InferenceResponse
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.rest import infer, infer_request, infer_response, json_input
from serving.frontends.rest.infer_request import decode
from serving.frontends.rest.infer_response import encode
from serving.frontends.shared.worker_threads import in_thread
from tests.serving.frontends.http_in_process import connection, http_frontend, read_answer
from tests.serving.frontends.raw_http import build
from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S

COUNT = 100_000
RANDOM = np.random.default_rng(0)
ARRAYS = {
    "FP32": RANDOM.standard_normal(COUNT).astype(np.float32),
    "FP64": RANDOM.standard_normal(COUNT) * 1e300,
    "INT8": RANDOM.integers(-128, 127, COUNT, np.int8),
    "INT64": RANDOM.integers(-(1 << 63), 1 << 62, COUNT),
    "UINT64": RANDOM.integers(0, (1 << 64) - 1, COUNT, np.uint64),
    "UINT16": RANDOM.integers(0, 65535, COUNT, np.uint16),
}
PAD = " " * json_input.LARGE


def body(*inputs: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def tensor(name: str, values: np.ndarray | list[Any], datatype: str = "FP32", **fields: Any) -> dict[str, Any]:
    data = values if isinstance(values, list) else values.tolist()
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": data, **fields}


def read(content: bytes) -> dict[str, np.ndarray]:
    request, _ = decode(memoryview(content), b"", "model", "", SharedMemory(False))
    return request.inputs


def read_apart(content: bytes) -> bool:
    """Whether the arrays are read apart from the rest."""
    with mock.patch.object(infer_request, "read_whole", side_effect=json_input.NotFlatError):
        try:
            read(content)
        except json_input.NotFlatError:
            return False
    return True


@pytest.mark.parametrize("datatype", ARRAYS)
def test_each_datatype_is_read_as_it_was_written(datatype: str) -> None:
    small = np.array([1, 2], ARRAYS[datatype].dtype)
    content = body(tensor("a", ARRAYS[datatype], datatype), tensor("b", small, datatype), id='a "data": [1] \\')
    assert read_apart(content)
    inputs = read(content)
    assert np.array_equal(inputs["a"], ARRAYS[datatype])
    assert np.array_equal(inputs["b"], small)
    assert inputs["a"].dtype == ARRAYS[datatype].dtype


@pytest.mark.parametrize("count", [1, 300, COUNT])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_small_and_large_bodies_are_read_alike(datatype: str, count: int) -> None:
    values = ARRAYS[datatype][:count]
    for pad in ("", " " * 4096):
        assert np.array_equal(read(pad.encode() + body(tensor("a", values, datatype)))["a"], values)


def test_requests_that_differ_only_in_their_numbers_keep_their_own() -> None:
    for factor in (1.0, 2.0):
        content = body(tensor("a", ARRAYS["FP32"][:1000] * factor), tensor("b", [factor]))
        inputs = read(content)
        assert np.array_equal(inputs["a"], ARRAYS["FP32"][:1000] * np.float32(factor))
        assert inputs["b"].tolist() == [factor]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), ("\n,\n", " :\t")])
def test_white_space_is_taken(separators: tuple[str, str]) -> None:
    content = json.dumps({"inputs": [tensor("a", ARRAYS["FP32"])]}, separators=separators).encode()
    assert read_apart(content)
    assert np.array_equal(read(content)["a"], ARRAYS["FP32"])


@pytest.mark.interpreted
@pytest.mark.parametrize(
    "inputs",
    [
        [tensor("a", [[1.0, 2.0]] * COUNT) | {"shape": [COUNT, 2]}],
        [tensor("a", ["x]", '"data": [1]'] * COUNT, "BYTES")],
        [tensor("a", [True, False] * COUNT, "BOOL")],
        [tensor("a", [1.0, float("nan")] * COUNT)],
        [tensor("a", [1] * COUNT), tensor("nested", [[1], [2]])],
    ],
)  # fmt: skip
def test_a_body_with_other_than_flat_arrays_is_parsed_whole(inputs: list[dict[str, Any]]) -> None:
    content = body(*inputs)
    assert len(content) > json_input.LARGE
    assert not read_apart(content)
    assert set(read(content)) == {one["name"] for one in inputs}


@pytest.mark.parametrize(
    "wrong",
    [
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1,2,]}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1,,2]}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[,1,2]}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1,2]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1 2]}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"data":[1,2}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[3],"data":[1,2]}]}',
        '{"inputs":[{"name":"a","datatype":"UINT8","shape":[2],"data":[1,256]}]}',
        '{"inputs":[{"name":"a","datatype":"UINT64","shape":[2],"data":[1,-2]}]}',
        '{"inputs":[{"name":"a","datatype":"INT8","shape":[2],"data":[1,2.5]}]}',
        '{"inputs":[{"name":"a","datatype":"FP16","shape":[2],"data":[1,2]}]}',
        '{"inputs":[{"name":"a","datatype":[],"shape":[2],"data":[1,2]}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[2],"parameters":{"data":[1,2]}}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[0],"data":null}]}',
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[1],"data":1}]}',
        '{"inputs":3,"data":[1,2]}',
        '[{"data":[1,2]}]',
        '"data"',
        '"data":[',
    ],
)
def test_what_is_wrong_is_refused(wrong: str) -> None:
    for pad in (PAD, " " * 4096, ""):
        with pytest.raises(ServingError):
            read((pad + wrong).encode())


def test_an_array_that_is_no_tensor_shifts_none() -> None:
    """The parsers take the last of equal keys; an escaped key is a key too."""
    content = PAD + (
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[1],"data":[1],"data":[2]},'
        '{"name":"b","datatype":"FP32","shape":[1],"d\\u0061ta":[3]}],"x\\"data":[4],"data":[5]}'
    )
    inputs = read(content.encode())
    assert inputs["a"].tolist() in ([1], [2])
    assert inputs["b"].tolist() == [3]


def test_a_large_answer_is_the_same_json() -> None:
    values = np.concatenate([ARRAYS["FP32"], np.array([np.nan, np.inf, -np.inf], np.float32)])
    outputs = {"floats": values, "ints": ARRAYS["INT64"].reshape(2, -1), "small": np.array([np.nan, 1], np.float32)}
    _, header = decode(body(tensor("a", [1])), b"", "m", "", SharedMemory(False))
    text, parts = encode(InferenceResponse("m", 1, "null", outputs), header)
    assert parts == []
    answer = json.loads(text)
    assert answer["id"] == "null"
    for one in answer["outputs"]:
        assert np.array_equal(
            np.array(one["data"], outputs[one["name"]].dtype), outputs[one["name"]].reshape(-1), equal_nan=True
        )


@pytest.mark.interpreted
def test_large_json_is_read_and_written_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_identity(tmp_path, max_batch_size=0)
    threads: dict[str, list[threading.Thread]] = {"decode": [], "encode": []}
    monkeypatch.setattr(infer, "decode", _noting(decode, threads["decode"]))
    monkeypatch.setattr(infer_response, "encode", _noting(encode, threads["encode"]))

    async def run() -> None:
        async with http_frontend(tmp_path) as (frontend, _), connection(frontend, 1 << 26) as (reader, writer):
            for values in (ARRAYS["FP32"], ARRAYS["FP32"][:2]):
                writer.write(build("POST", "/v2/models/identity/infer", body(tensor("INPUT0", values))))
                status, _, answer = await read_answer(reader)
                assert status == 200
                assert np.array_equal(np.array(json.loads(answer)["outputs"][0]["data"], np.float32), values)

    asyncio.run(run())
    main = threading.current_thread()
    for seen in threads.values():
        assert [thread is main for thread in seen] == [False, True]


@pytest.mark.interpreted
def test_reading_stops_when_its_client_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first piece is held until the connection is closed; no other one is read."""
    onnx_identity(tmp_path, "identity", "FP32")
    content = body(tensor("INPUT0", [0.5] * 400_000))
    begun, gone, pieces = threading.Event(), threading.Event(), []
    parsed = json_input._parsed

    def hold(text: bytes, row: Any) -> Any:
        pieces.append(len(text))
        begun.set()
        assert gone.wait(PATIENCE_S)
        return parsed(text, row)

    monkeypatch.setattr(json_input, "_parsed", hold)

    async def run() -> None:
        async with http_frontend(tmp_path) as (frontend, _):
            async with connection(frontend) as (_, writer):
                writer.write(build("POST", "/v2/models/identity/infer", content))
                await asyncio.to_thread(begun.wait, PATIENCE_S)
            while frontend._listener is not None and frontend._listener._connections:
                await asyncio.sleep(0.01)
            gone.set()
            await in_thread(lambda: None)
            async with connection(frontend) as (reader, writer):
                writer.write(build("POST", "/v2/models/identity/infer", body(tensor("INPUT0", [0.5] * 40_000))))
                assert (await read_answer(reader))[0] == 400  # its shape does not fit, but it is read

    asyncio.run(run())
    assert len(pieces) == 1 + 2  # the second one in two pieces


def _noting(function: Callable[..., Any], seen: list[threading.Thread]) -> Callable[..., Any]:
    def noting(*arguments: Any) -> Any:
        seen.append(threading.current_thread())
        return function(*arguments)

    return noting
