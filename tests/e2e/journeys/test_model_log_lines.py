"""What a real server logs of a model says so, from the load to what the model prints and how its process ends."""

from collections import defaultdict
from collections.abc import Iterator

import pytest

from repository.core.log_line import LogLine, parse
from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
TALKATIVE = """
    import os
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            print("I begin")
            pb_utils.Logger.log_warn("of two" + chr(10) + "lines")

        def execute(self, requests):
            value = requests[0].inputs()[0].as_numpy()[0]
            if value < 0:
                os._exit(7)
            raise ValueError(f"no {value:g} today")
"""
BROKEN = """
    class TritonPythonModel:
        def initialize(self, args):
            raise RuntimeError("the weights are missing")

        def execute(self, requests):
            return []
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    python_model(repository, "talkative", TALKATIVE, TENSORS)
    python_model(repository, "broken", BROKEN, TENSORS)
    onnx_scale(repository, "scale", 3.0)
    with ServerProcess(repository, "--model-control-mode=explicit", "--exit-on-error=false") as running:
        yield running


def lines_of(server: ServerProcess, model: str) -> list[LogLine]:
    found: dict[str, list[LogLine]] = defaultdict(list)
    for text in server.log.splitlines():
        line = parse(text)
        if line is not None:
            found[line.model].append(line)
    return found[model]


def said(server: ServerProcess, model: str, text: str) -> LogLine | None:
    return next((line for line in lines_of(server, model) if text in line.text), None)


def infer(server: ServerProcess, value: float) -> int:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [value]}
    return server.post("/v2/models/talkative/infer", {"inputs": [tensor]})[0]


def test_a_load_and_an_unload_are_about_their_model(server: ServerProcess) -> None:
    assert server.post("/v2/repository/models/scale/load")[0] == 200
    assert server.post("/v2/repository/models/scale/unload")[0] == 200
    wait_until(lambda: said(server, "scale", "unloading"))
    assert said(server, "scale", "loaded 'scale' version 1")
    assert not said(server, "talkative", "scale")


def test_what_a_model_prints_and_raises_is_about_its_version(server: ServerProcess) -> None:
    assert server.post("/v2/repository/models/talkative/load")[0] == 200
    began = wait_until(lambda: said(server, "talkative", "I begin"))
    assert (began.version, began.level) == (1, "INFO")
    assert wait_until(lambda: said(server, "talkative", "of two")).level == "WARNING"
    wait_until(lambda: "\tlines" in server.log.splitlines(), what="the rest of a line that is no line of its own")
    assert infer(server, 3) == 500
    failed = wait_until(lambda: said(server, "talkative", "Traceback"))
    assert failed.level == "ERROR"
    wait_until(lambda: "\tValueError: no 3 today" in server.log.splitlines())
    assert infer(server, -1) == 500
    wait_until(lambda: said(server, "talkative", "the process is restarted"))
    wait_until(lambda: sum("I begin" in line.text for line in lines_of(server, "talkative")) == 2)


def test_a_load_that_fails_says_why(server: ServerProcess) -> None:
    assert server.post("/v2/repository/models/broken/load")[0] >= 400
    wait_until(lambda: said(server, "broken", "Traceback"))
    assert wait_until(lambda: said(server, "broken", "RuntimeError: the weights are missing")).level == "WARNING"
