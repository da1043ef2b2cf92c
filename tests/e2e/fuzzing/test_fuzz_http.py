"""Anything in any field of every HTTP route: answered in time, never with a 500, and the server goes on serving."""

import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.frontends.http_server import ROUTES
from tests.e2e.fuzzing.inputs import KEPT, MODELS, PARAMETERS, fuzzed, mutated, values, words
from tests.serving.frontends.raw_http import Answer, RawClient, infer_body, tensor
from tests.support.serving_process import PATIENCE_S, ServerProcess

FUZZ = settings(max_examples=250)
TIMEOUT_S = PATIENCE_S
ALL_ROUTES = [(route.method, route.pattern) for route in ROUTES]
STATES = {200, 400, 404, 405, 408, 411, 413, 415, 431, 499, 501, 503}

ADD_SUB = json.loads(
    infer_body(
        tensor([1.0] * 4),
        tensor([2.0] * 4, name="INPUT1"),
        id="1",
        outputs=[{"name": "OUTPUT0", "parameters": {}}],
        parameters={},
    )
)
REQUESTS = {
    "add_sub": ADD_SUB,
    "words": json.loads(infer_body(tensor(["a", "b"], datatype="BYTES"))),
    "plain": json.loads(infer_body(tensor([1.0, 2.0], [2]))),
    "cached": json.loads(infer_body(tensor([1.0]))),
    "python": json.loads(infer_body(tensor([1.0]))),
    "sequence": json.loads(infer_body(tensor([1.0]), parameters={"sequence_id": 5, "sequence_start": True})),
    "both": json.loads(infer_body(tensor([1.0]))),
    "lazy": json.loads(infer_body(tensor([1.0]))),
    "counted": json.loads(infer_body(tensor([1.0]), parameters={"sequence_id": 5, "sequence_start": True})),
    "oldest": json.loads(infer_body(tensor([1.0]), parameters={"sequence_id": 2**31, "sequence_start": True})),
    "named": json.loads(infer_body(tensor([1.0]), parameters={"sequence_id": "a name", "sequence_start": True})),
    "summed": json.loads(infer_body(tensor([1.0]), parameters={"sequence_id": 7, "sequence_start": True})),
    "prioritised": json.loads(infer_body(tensor([1.0]), parameters={"priority": 1, "timeout": 1000})),
    "ragged": json.loads(infer_body(tensor([1.0, 2.0], name="IN"), tensor([1.0], name="ROWS"))),
    "optional": json.loads(infer_body(tensor([1.0, 2.0]), tensor([1.0, 2.0], name="INPUT1"))),
    "variable": json.loads(infer_body(tensor([1.0, 2.0], [1, 2, 1]))),
    "reshaped": json.loads(infer_body(tensor([1.0, 2.0], [1, 2, 1]))),
    "scalar": json.loads(infer_body(tensor([1.0]))),
    "pipeline": json.loads(infer_body(tensor([1.0], name="X"))),
    "decoupled": json.loads(infer_body(tensor([2.0], [1]))),
    "ordered": json.loads(infer_body(tensor([1.0]))),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with fuzzed(tmp_path_factory.mktemp("fuzz")) as server:
        yield server


def encoded(value: object) -> bytes:
    """JSON as Python writes it: NaN and lone surrogates too, which no JSON may hold."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def ask(server: ServerProcess, method: str, path: str, body: bytes, **headers: str) -> Answer:
    with RawClient(server.http, TIMEOUT_S) as client:
        answer = client.request(method, path, body, **headers)
    absent = answer.status == 500 and b"Unable to open shared memory region" in answer.body  # Triton's own code for it
    assert answer.status in STATES or absent, (answer.status, answer.body[:500])
    if answer.status != 200 and method != "HEAD":
        error = json.loads(answer.body.removeprefix(b"data: "))["error"]
        said = error["message"] if path.startswith("/v1/") and isinstance(error, dict) else error
        assert isinstance(said, str)
        assert "/tmp/" not in said
    return answer


def serves(server: ServerProcess) -> bool:
    return ask(server, "POST", f"/v2/models/{KEPT}/infer", encoded(ADD_SUB)).status == 200


@FUZZ
@given(data=st.data(), name=st.sampled_from(sorted(REQUESTS)))
def test_an_inference_request_with_anything_in_any_field(server: ServerProcess, data: st.DataObject, name: str) -> None:
    ask(server, "POST", f"/v2/models/{name}/infer", encoded(data.draw(mutated(REQUESTS[name]))))
    assert serves(server)


@FUZZ
@given(
    name=st.sampled_from(sorted(REQUESTS)),
    length=st.integers(-2, 400) | st.sampled_from([2**31, 2**64]),
    size=st.integers(-5, 100) | st.sampled_from([2**31, 2**63, 2**70]),
    shape=st.lists(st.integers(-2, 6) | st.sampled_from([2**31, 2**63, 2**64]), max_size=4),
    binary=st.binary(max_size=100),
    datatype=st.sampled_from(["FP32", "BYTES", "FP16", "INT8", "X"]),
)
def test_a_binary_request_with_any_sizes(
    server: ServerProcess, name: str, length: int, size: int, shape: list[int], binary: bytes, datatype: str
) -> None:
    given_tensor = {"name": "INPUT0", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}
    header = encoded({"inputs": [given_tensor], "parameters": {"binary_data_output": True}})
    at = len(header) if length > 200 and length < 2**31 else length
    ask(server, "POST", f"/v2/models/{name}/infer", header + binary, Inference_Header_Content_Length=str(at))
    assert serves(server)


@FUZZ
@given(data=st.data(), route=st.sampled_from([one for one in ALL_ROUTES if not one[1].endswith("/sample")]))
def test_every_route_with_anything_in_its_path_and_body(
    server: ServerProcess, data: st.DataObject, route: tuple[str, str]
) -> None:
    method, pattern = route
    anything = st.sampled_from(MODELS) | words
    path = ""
    for part in pattern.replace("[", "").replace("]", "").split("/")[1:]:
        path += "/" + (quote(data.draw(anything).encode("utf-8", "surrogatepass")) if part.startswith("{") else part)
    parameters = st.dictionaries(st.sampled_from(PARAMETERS), values, max_size=3)
    body = data.draw(
        st.binary(max_size=60)
        | values.map(encoded)
        | st.fixed_dictionaries({"parameters": parameters}).map(encoded)
        | st.fixed_dictionaries({"key": words, "offset": values, "byte_size": values}).map(encoded)
    )
    encoding = data.draw(st.sampled_from(["identity", "gzip", "deflate", "br", "gzip, deflate", ""]))
    ask(server, method, path[:2000], body, Content_Encoding=encoding)


@settings(FUZZ, max_examples=100)
@given(
    body=st.fixed_dictionaries(
        {"seconds": st.sampled_from([0.001, 0, -1, True, None, "1", [1], 1e9])},
        optional={"count": values, "version": values, "parameters": values},
    ),
    name=st.sampled_from(MODELS) | words,
)
def test_a_sampling_with_anything_in_any_field(server: ServerProcess, body: dict[str, object], name: str) -> None:
    """Its time is always given: it waits for so long where nothing is wrong."""
    path = quote(name.encode("utf-8", "surrogatepass"), safe="")
    ask(server, "POST", f"/v2/slipway/models/{path}/sample", encoded(body))


GOLDEN = {
    "name": "one",
    "request": ADD_SUB,
    "expected": {
        "outputs": [tensor([3.0] * 4, name="OUTPUT0"), {"name": "OUTPUT1", "datatype": "FP32", "base64": "AA=="}]
    },
    "tolerance": {"absolute": 0.5, "relative": 0.1},
    "seconds": 30,
}


@settings(FUZZ, max_examples=100)
@given(golden=mutated(GOLDEN))
def test_a_load_with_anything_in_any_field_of_a_golden_request(server: ServerProcess, golden: object) -> None:
    ask(server, "POST", "/v2/repository/models/add_sub/unload", b"{}")
    text = encoded([golden]).decode("utf-8", "surrogatepass")
    ask(server, "POST", "/v2/repository/models/add_sub/load", encoded({"parameters": {"slipway.golden": text}}))
    assert ask(server, "POST", "/v2/repository/models/add_sub/load", b"{}").status == 200
    assert serves(server)


CHAT = {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "me"}
SETTINGS = {"n": 2, "stop": ["x"], "max_tokens": 5, "temperature": 1.0, "top_p": 1, "seed": 1}
SETTINGS |= {"model": "writer", "logprobs": 0, "best_of": 2, "response_format": {"type": "text"}, "user": "me"}
TEXTS = {
    "/v1/completions": SETTINGS | {"prompt": ["a", "b"], "echo": True, "stream": True, "stream_options": {}},
    "/v1/chat/completions": SETTINGS | {"messages": [CHAT, CHAT | {"role": "assistant"}], "tools": [], "stream": False},
    "/v2/models/writer/generate": {"id": "1", "INPUT0": "a", "parameters": {"x": 1}, "y": "z"},
    "/v2/models/add_sub/generate_stream": {"INPUT0": [1, 2, 3, 4], "INPUT1": [1, 2, 3, 4]},
}


@FUZZ
@given(data=st.data(), path=st.sampled_from(sorted(TEXTS)))
def test_a_request_for_text_with_anything_in_any_field(server: ServerProcess, data: st.DataObject, path: str) -> None:
    assert ask(server, "POST", path, encoded(TEXTS[path])).status == 200
    ask(server, "POST", path, encoded(data.draw(mutated(TEXTS[path]))))


CONFIG = {
    "name": "add_sub",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "input": [{"name": f"INPUT{index}", "data_type": "TYPE_FP32", "dims": [4]} for index in range(2)],
    "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "labels.txt"}],
    "instance_group": [{"name": "g", "count": 1, "kind": "KIND_CPU", "gpus": []}],
    "dynamic_batching": {"preferred_batch_size": [4], "max_queue_delay_microseconds": 100},
    "version_policy": {"latest": {"num_versions": 1}},
    "parameters": {
        "slipway.residency": {"string_value": '{"mode": "pinned"}'},
        "intra_op_thread_count": {"string_value": "1"},
    },
    "model_warmup": [
        {"name": "w", "batch_size": 1, "inputs": {"INPUT0": {"data_type": "TYPE_FP32", "dims": [4], "zero_data": True}}}
    ],
    "optimization": {"graph": {"level": 1}},
}


@settings(FUZZ, max_examples=150)
@given(config=mutated(CONFIG))
def test_a_load_request_with_anything_in_any_field_of_its_configuration(server: ServerProcess, config: object) -> None:
    body = encoded({"parameters": {"config": encoded(config).decode("utf-8", "surrogatepass")}})
    ask(server, "POST", "/v2/repository/models/plain/load", body)
    ask(server, "POST", "/v2/repository/models/add_sub/load", body)
    assert ask(server, "POST", "/v2/repository/models/add_sub/load", b"{}").status == 200
    assert serves(server)
