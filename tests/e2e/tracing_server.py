"""A server that traces to a file, and functions that read that file."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.support.model_factory import onnx_identity, onnx_scale, onnx_sequence_sum, python_model, write_config
from tests.support.serving_process import ServerProcess, wait_until

X = {"INPUT0": np.array([[2]], np.float32)}
CLEARED: dict[str, Any] = {"trace_level": None, "trace_rate": None, "trace_count": None, "log_frequency": None}
STEP = """step { model_name: "scale" model_version: -1
  input_map { key: "INPUT0" value: "%s" } output_map { key: "OUTPUT0" value: "%s" } }"""
TWICE = f"""name: "twice" platform: "ensemble" max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
ensemble_scheduling {{ {STEP % ("INPUT0", "MIDDLE")} {STEP % ("MIDDLE", "OUT")} }}"""
STREAM = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for _ in range(2):
                    out = pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())
                    sender.send(pb_utils.InferenceResponse([out]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            time.sleep(0.05)  # so that the answer comes before execute has returned
"""
STREAM_CONFIG = """name: "stream" backend: "python" max_batch_size: 0 model_transaction_policy { decoupled: true }
input { name: "INPUT0" data_type: TYPE_FP32 dims: [1, 1] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1, 1] }"""
THROUGH = """name: "through" platform: "ensemble" max_batch_size: 0
input { name: "INPUT0" data_type: TYPE_FP32 dims: [1, 1] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1, 1] }
ensemble_scheduling { step { model_name: "stream" model_version: -1
  input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } }"""
BOTH = ("TIMESTAMPS", "TENSORS")
COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]
RECEIVED = {"http": "HTTP_RECV", "grpc": "GRPC_WAITREAD"}
SENT = {"http": "HTTP_SEND", "grpc": "GRPC_SEND"}


class Setting(NamedTuple):
    server: ServerProcess
    file: Path


@contextlib.contextmanager
def tracing_server(repository: Path, folder: Path) -> Iterator[Setting]:
    """Nothing is traced until a test asks for it."""
    for name in ("scale", "other"):
        onnx_scale(repository, name, 3.0)
    for datatype in ("FP16", "BYTES", "BOOL"):
        onnx_identity(repository, f"identity_{datatype}", datatype)
    onnx_identity(repository, "large", "FP32", [-1])
    onnx_sequence_sum(repository)
    for name, config in (("twice", TWICE), ("through", THROUGH)):
        write_config(repository / name, config)
        (repository / name / "1").mkdir()
    python_model(repository, "stream", STREAM, STREAM_CONFIG)
    file = folder / "trace.json"
    with ServerProcess(repository, f"--trace-config=triton,file={file}", "--http-max-input-size=268435456") as server:
        yield Setting(server, file)


def clear(client: TritonClient) -> None:
    for model in (None, "scale", "other"):
        update(client, model, **CLEARED)


def plain(client: TritonClient, found: Any) -> dict[str, Any]:
    if client.protocol == "http":
        return {name: value if isinstance(value, list) else [value] for name, value in found.items()}
    return {name: list(row.value) for name, row in found.settings.items()}


def update(client: TritonClient, model: str | None = None, **settings: Any) -> dict[str, Any]:
    return plain(client, client.call("update_trace_settings", model_name=model, settings=settings))


def numbered(file: Path) -> list[Path]:
    return sorted(file.parent.glob(f"{file.name}.*"), key=lambda path: int(path.suffix[1:]))


def whole(path: Path) -> Any:
    """The rows of a file, once a thread of the server has written all of it."""

    def read() -> Any:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    return wait_until(read, what=f"the whole of {path.name}")


def traced(
    client: TritonClient,
    file: Path,
    act: Callable[[], object],
    count: int = 1,
    levels: tuple[str, ...] = ("TIMESTAMPS",),
) -> list[dict[str, Any]]:
    """The rows of the file that the next `count` requests fill, while they alone are traced."""
    before = len(numbered(file))
    update(client, trace_level=list(levels), trace_rate="1", trace_count=str(count))
    act()
    path = wait_until(lambda: numbered(file)[before:], what="the next numbered file")[0]
    update(client, **CLEARED)
    rows: list[dict[str, Any]] = whole(path)
    return rows


def heads(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in rows if "model_name" in row}


def moments(rows: list[dict[str, Any]], identifier: int) -> dict[str, int]:
    found = [stamp for row in rows if row["id"] == identifier for stamp in row.get("timestamps", [])]
    stamps = {stamp["name"]: stamp["ns"] for stamp in found}
    assert len(stamps) == len(found), f"each moment once: {[stamp['name'] for stamp in found]}"
    return stamps


def tensors(rows: list[dict[str, Any]], activity: str, identifier: int | None = None) -> dict[str, dict[str, str]]:
    return {
        row["tensor"]["name"]: row["tensor"]
        for row in rows
        if row.get("activity") == activity and identifier in (None, row["id"])
    }
