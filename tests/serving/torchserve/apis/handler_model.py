"""A Python model with the tensors and parameters of a TorchServe handler: it answers with its inputs, or does as they say."""

from pathlib import Path

from tests.support.model_factory import write_config

SOURCE = """
import json
import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        parts = [bytes(part) for part in pb.get_input_tensor_by_name(request, "data").as_numpy().reshape(-1)]
        asked = json.loads(request.parameters())
        names = json.loads(asked.get("torchserve_parts", "[]"))
        act = parts[-1].partition(b" ")[0] if parts else b""
        parameters, answer = {}, b"done"
        if act == b"raise":
            return pb.InferenceResponse([], pb.TritonError("oh no"))
        if act == b"set":
            parameters = json.loads(parts[-1].partition(b" ")[2])
        elif act == b"sleep":
            time.sleep(float(parts[-1].partition(b" ")[2]))
        elif act == b"size":
            answer = b"x" * int(parts[-1].partition(b" ")[2])
        elif act == b"zeros":
            answer = b"\\0a\\0\\0"
        elif act != b"raw":
            shown = [[*name, part.decode("latin-1")] for name, part in zip(names, parts)]
            told = {"parts": shown, "id": request.request_id(), "explain": asked.get("torchserve_explain")}
            told["headers"] = json.loads(asked.get("torchserve_headers", "[]"))
            answer = json.dumps(told).encode()
        output = pb.Tensor("data", np.array([[answer]], dtype=np.object_))
        return pb.InferenceResponse([output], parameters=parameters)
"""

STREAMING = """
import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            body = bytes(pb.get_input_tensor_by_name(request, "data").as_numpy().reshape(-1)[0])
            pieces = body.split(b",")
            for piece in pieces[:-1]:
                sender.send(self.response(piece))
            if pieces[-1] == b"raise":
                failed = pb.InferenceResponse([], pb.TritonError("oh no"))
                sender.send(failed, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(self.response(pieces[-1]), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, piece):
        return pb.InferenceResponse([pb.Tensor("data", np.array([[piece]], dtype=np.object_))])
"""

CONFIG = """
backend: "python"
max_batch_size: 4
input {{ name: "data" data_type: TYPE_STRING dims: [ -1 ] allow_ragged_batch: true }}
output {{ name: "data" data_type: TYPE_STRING dims: [ 1 ] }}
{extra}
"""


def handler_model(repository: Path, name: str = "acts", version: int = 1, extra: str = "") -> Path:
    return _write(repository, name, version, SOURCE, extra)


def streaming_model(repository: Path, name: str = "streams") -> Path:
    return _write(repository, name, 1, STREAMING, "model_transaction_policy { decoupled: true }")


def _write(repository: Path, name: str, version: int, source: str, extra: str) -> Path:
    folder = write_config(repository / name, CONFIG.format(extra=extra))
    (folder / str(version)).mkdir(exist_ok=True)
    (folder / str(version) / "model.py").write_text(source)
    return folder
