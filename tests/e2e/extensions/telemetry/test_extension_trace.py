"""The trace extension with the stock clients: settings of the server and of models, timestamps, and the files themselves."""

import json
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.e2e.tracing_server import (
    BOTH,
    CLEARED,
    COMPUTE,
    RECEIVED,
    SENT,
    Setting,
    X,
    clear,
    heads,
    moments,
    numbered,
    plain,
    traced,
    tracing_server,
    update,
    whole,
)
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until


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


# -- settings ----------------------------------------------------------------------------------------------------------
def test_settings_of_models_follow_the_server_until_they_are_their_own(client: TritonClient, setting: Setting) -> None:
    start = plain(client, client.call("get_trace_settings"))
    assert start == {
        "trace_level": ["OFF"],
        "trace_rate": ["1000"],
        "trace_count": ["-1"],
        "log_frequency": ["0"],
        "trace_file": [str(setting.file)],
        "trace_mode": ["triton"],
    }
    own = update(client, "scale", trace_level=["TENSORS", "TIMESTAMPS"], trace_rate="5")
    assert own == start | {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": ["5"]}
    assert plain(client, client.call("get_trace_settings")) == start
    update(client, trace_rate="7", log_frequency="9")
    assert plain(client, client.call("get_trace_settings", model_name="scale")) == own | {"log_frequency": ["9"]}
    assert update(client, "scale", trace_rate=None)["trace_rate"] == ["7"]
    assert update(client, **CLEARED) == start


def test_what_is_left_of_a_count_outlives_other_changes(client: TritonClient) -> None:
    update(client, trace_level=["TIMESTAMPS"], trace_rate="1", trace_count="5")
    for _ in range(2):
        client.infer("scale", X)
    assert update(client, log_frequency="3")["trace_count"] == ["3"]
    assert update(client, trace_count="4")["trace_count"] == ["4"]
    assert update(client, trace_count=None)["trace_count"] == ["-1"]


@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"trace_file": "/tmp/x"}, "UNSUPPORTED", "trace file location"),
        ({"trace_level": ["TIMESTAMPS"], "trace_rate": "often"}, "INVALID_ARG", "trace_rate"),
        ({"trace_level": ["TIMESTAMPS"], "trace_rate": "0"}, "INVALID_ARG", "trace_rate"),
        ({"trace_count": "-2"}, "INVALID_ARG", "trace_count"),
        ({"trace_level": ["LOUD"]}, "INVALID_ARG", "LOUD"),
        ({"trace_level": ["OFF", "TIMESTAMPS"]}, "INVALID_ARG", "OFF"),
        ({"trace_colour": "red"}, "INVALID_ARG", "trace_colour"),
    ],
)
def test_a_wrong_change_changes_nothing(client: TritonClient, settings: dict[str, Any], code: str, said: str) -> None:
    before = plain(client, client.call("get_trace_settings"))
    assert said in refused(client, code, client.call, "update_trace_settings", settings=settings)
    assert plain(client, client.call("get_trace_settings")) == before


def test_an_unknown_model_has_no_settings(client: TritonClient) -> None:
    assert "nope" in refused(client, "NOT_FOUND", client.call, "get_trace_settings", model_name="nope")


def test_tracing_needs_a_file(tmp_path: Path) -> None:
    onnx_scale(tmp_path)
    with ServerProcess(
        tmp_path, "--trace-level=TIMESTAMPS", "--trace-config=level=TENSORS", "--trace-rate=1"
    ) as server:
        for protocol in PROTOCOLS:
            with client_of(server, protocol) as client:
                client.infer("scale", X)
                found = plain(client, client.call("get_trace_settings"))
                assert (found["trace_rate"], found["trace_level"]) == (["1"], list(BOTH))
                said = refused(
                    client, "INVALID_ARG", client.call, "update_trace_settings", settings={"trace_level": ["TENSORS"]}
                )
                assert "trace file" in said


# -- timestamps --------------------------------------------------------------------------------------------------------
def test_traces_say_when_each_phase_began(client: TritonClient, setting: Setting) -> None:
    def act() -> None:
        for number in range(3):
            client.infer("scale", X, request_id=f"r{number}")

    rows = traced(client, setting.file, act, count=3)
    found = heads(rows)
    assert [(row["model_name"], row["model_version"], row["request_id"]) for row in found.values()] == [
        ("scale", 1, "r0"),
        ("scale", 1, "r1"),
        ("scale", 1, "r2"),
    ]
    assert not any("parent_id" in row for row in found.values())
    received, sent = RECEIVED[client.protocol], SENT[client.protocol]
    for identifier in found:
        stamps = moments(rows, identifier)
        assert list(stamps) == [
            f"{received}_START", f"{received}_END", "REQUEST_START", "QUEUE_START", *COMPUTE,
            "INFER_RESPONSE_COMPLETE", "REQUEST_END", f"{sent}_START", f"{sent}_END",
        ]  # fmt: skip
        assert list(stamps.values()) == sorted(stamps.values())


def test_a_request_that_fails_is_traced_too(client: TritonClient, setting: Setting) -> None:
    def act() -> None:
        with pytest.raises(InferenceServerException):
            client.infer("scale", {"INPUT0": np.ones((1, 7), np.float32)})

    rows = traced(client, setting.file, act)
    [identifier] = heads(rows)
    stamps = moments(rows, identifier)
    assert {"REQUEST_START", "REQUEST_END", f"{RECEIVED[client.protocol]}_START"} <= set(stamps)
    assert "COMPUTE_START" not in stamps


def test_steps_of_an_ensemble_belong_to_its_trace(client: TritonClient, setting: Setting) -> None:
    rows = traced(client, setting.file, lambda: client.infer("twice", X))
    found = heads(rows)
    assert sorted(row["model_name"] for row in found.values()) == ["scale", "scale", "twice"], "one trace, in one file"
    [parent] = [row["id"] for row in found.values() if row["model_name"] == "twice"]
    assert [row.get("parent_id") for row in found.values() if row["model_name"] == "scale"] == [parent, parent]
    outer = moments(rows, parent)
    assert not set(COMPUTE) & set(outer)
    assert {"REQUEST_START", "QUEUE_START", "REQUEST_END", f"{SENT[client.protocol]}_END"} <= set(outer)
    for child in found.keys() - {parent}:
        inner = moments(rows, child)
        assert list(inner) == ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]
        assert outer["REQUEST_START"] <= inner["REQUEST_START"] <= inner["REQUEST_END"] <= outer["REQUEST_END"]


def test_an_ensemble_whose_step_refuses_its_request_is_traced(client: TritonClient, setting: Setting) -> None:
    def act() -> None:
        with pytest.raises(InferenceServerException):
            client.infer("twice", {"INPUT0": np.ones((9, 1), np.float32)})
        client.infer("twice", X)

    assert len({row["id"] for row in traced(client, setting.file, act, count=2)}) == 4


def test_a_large_body_takes_time_to_receive_and_a_large_answer_to_send(client: TritonClient, setting: Setting) -> None:
    large = {"INPUT0": np.zeros((1, 8 << 20), np.float32)}
    rows = traced(client, setting.file, lambda: client.infer("large", large))
    [identifier] = heads(rows)
    stamps = moments(rows, identifier)
    for part in (RECEIVED[client.protocol], SENT[client.protocol]):
        assert stamps[f"{part}_START"] < stamps[f"{part}_END"]


def streamed(address: str, client: TritonClient, model: str) -> None:
    """Both responses of one request, and the end."""
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(address) as stream:
        stream.start_stream(lambda result, error: answers.put(error or result))
        stream.async_stream_infer(model, client.tensors(X), enable_empty_final_response=True)
        for _ in range(3):
            assert not isinstance(answers.get(timeout=60), Exception)
        stream.stop_stream()


def test_responses_of_a_decoupled_model_are_one_trace(server: ServerProcess, setting: Setting) -> None:
    with client_of(server, "grpc") as client:
        rows = traced(client, setting.file, lambda: streamed(server.grpc, client, "stream"), levels=BOTH)
    [identifier] = heads(rows)
    stamps = moments(rows, identifier)
    assert {*COMPUTE, "GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"} <= set(stamps)
    assert stamps["GRPC_SEND_START"] <= stamps["REQUEST_END"] <= stamps["GRPC_SEND_END"], "from the first to the last"
    assert [row["activity"] for row in rows if "activity" in row] == [
        "TENSOR_QUEUE_INPUT", "TENSOR_BACKEND_OUTPUT", "TENSOR_BACKEND_OUTPUT",
    ]  # fmt: skip


def test_an_ensemble_of_a_decoupled_model_is_traced_to_its_last_response(
    server: ServerProcess, setting: Setting
) -> None:
    with client_of(server, "grpc") as client:
        rows = traced(client, setting.file, lambda: streamed(server.grpc, client, "through"), levels=BOTH)
    names = {row["id"]: row["model_name"] for row in heads(rows).values()}
    assert sorted(names.values()) == ["stream", "through"]
    for identifier, name in names.items():
        outputs = [row for row in rows if row["id"] == identifier and row.get("activity") == "TENSOR_BACKEND_OUTPUT"]
        assert len(outputs) == 2, name
        assert (set(COMPUTE) <= set(moments(rows, identifier))) == (name == "stream")


def test_a_stream_that_the_client_leaves_ends_its_trace(server: ServerProcess, setting: Setting) -> None:
    answers: queue.Queue[Any] = queue.Queue()

    def act(client: TritonClient) -> None:
        with triton.InferenceServerClient(server.grpc) as stream:
            stream.start_stream(lambda result, error: answers.put(error or result))
            stream.async_stream_infer("stream", client.tensors(X))
            answers.get(timeout=60)
            stream.stop_stream(cancel_requests=True)

    with client_of(server, "grpc") as client:
        rows = traced(client, setting.file, lambda: act(client))
    [identifier] = heads(rows)
    assert {"GRPC_SEND_START", "REQUEST_END", "GRPC_SEND_END"} <= set(moments(rows, identifier))


def test_answers_in_events_and_in_compressed_bodies_are_sent_at_some_time(
    server: ServerProcess, setting: Setting
) -> None:
    large = {"INPUT0": np.zeros((1, 1 << 20), np.float32)}
    with client_of(server, "http") as client:
        acts: dict[str, Callable[[], object]] = {
            "stream": lambda: httpx.post(
                f"{server.http_url}/v2/models/stream/generate_stream", json={"INPUT0": [2.0]}, timeout=PATIENCE_S
            ),
            "large": lambda: client.infer("large", large, response_compression_algorithm="gzip"),
        }
        for model, act in acts.items():
            rows = traced(client, setting.file, act)
            assert [row["model_name"] for row in heads(rows).values()] == [model]
            stamps = moments(rows, next(iter(heads(rows))))
            assert stamps["HTTP_SEND_START"] < stamps["HTTP_SEND_END"]


# -- files -------------------------------------------------------------------------------------------------------------
def test_each_frequency_fills_files_of_its_own(client: TritonClient, setting: Setting) -> None:
    before = len(numbered(setting.file))
    for model in ("scale", "other"):
        update(client, model, trace_level=["TIMESTAMPS"], trace_rate="1", log_frequency="2")
    for model in ("scale", "other", "scale", "other", "scale"):
        client.infer(model, X)
    wait_until(lambda: len(numbered(setting.file)) == before + 2, what="two numbered files")
    found = [heads(whole(path)) for path in numbered(setting.file)[before:]]
    names = [[row["model_name"] for row in one.values()] for one in found]
    assert sorted(names) == [["other", "other"], ["scale", "scale"]]
    update(client, "scale", **CLEARED)  # what was collected so far goes to a file
    wait_until(lambda: len(numbered(setting.file)) == before + 3, what="a third file")
    assert [row["model_name"] for row in heads(whole(numbered(setting.file)[-1])).values()] == ["scale"]


def test_one_request_of_so_many_is_traced(client: TritonClient, setting: Setting) -> None:
    before = len(numbered(setting.file))
    update(client, trace_level=["TIMESTAMPS"], trace_rate="2", trace_count="3", log_frequency="2")
    for number in range(10):
        client.infer("scale", X, request_id=f"r{number}")
    assert plain(client, client.call("get_trace_settings"))["trace_count"] == ["0"]
    wait_until(lambda: len(numbered(setting.file)) == before + 2, what="two numbered files")
    ids = [[row["request_id"] for row in heads(whole(path)).values()] for path in numbered(setting.file)[before:]]
    assert ids == [["r1", "r3"], ["r5"]]


def test_without_a_frequency_one_models_traces_are_a_file_at_the_end(tmp_path: Path) -> None:
    for name in ("scale", "other"):
        onnx_scale(tmp_path / "models", name)
    traces = tmp_path / "trace.json"
    with ServerProcess(tmp_path / "models", f"--trace-file={traces}") as server:
        for protocol in PROTOCOLS:
            with client_of(server, protocol) as client:
                update(client, "other", trace_level=["TIMESTAMPS"], trace_rate="1")
                for name in ("scale", "other"):
                    client.infer(name, X)
        assert not numbered(traces)
        server.terminate()
        rows = json.loads(traces.read_text())
    assert [row["model_name"] for row in heads(rows).values()] == ["other", "other"]
