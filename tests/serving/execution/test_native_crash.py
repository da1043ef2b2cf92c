"""When a library ends the server from native code, the server's last words name the model and the file."""

import http.client
import signal
from pathlib import Path

import numpy as np
from onnx import helper

from dashboard.supervisor.process import Ending
from repository.core import crash_trace
from tests.support.frontend_workers import WORKERS
from tests.support.model_factory import onnx_bytes, onnx_scale, write_onnx
from tests.support.serving_process import PATIENCE_S, ServerProcess

SMALLEST = np.array([-(2**31)], np.int32)
MINUS_ONE = np.array([-1], np.int32)


def dividing(repository: Path, name: str, *, while_loading: bool) -> None:
    """The smallest INT32 by -1 is no INT32: the processor stops ONNX Runtime with SIGFPE, where it folds constants or where it
    executes."""
    nodes = [helper.make_node("Div", ["smallest", "INPUT0"], ["OUTPUT0"])]
    if while_loading:
        nodes = [
            helper.make_node("Div", ["smallest", "minus_one"], ["quotient"]),
            helper.make_node("Add", ["INPUT0", "quotient"], ["OUTPUT0"]),
        ]
    tensors = [("INPUT0", "INT32", ["batch", 1])], [("OUTPUT0", "INT32", ["batch", 1])]
    write_onnx(repository, name, onnx_bytes(nodes, *tensors, {"smallest": SMALLEST, "minus_one": MINUS_ONE}))


def test_a_crash_while_loading_names_the_model_and_its_file(tmp_path: Path):
    dividing(tmp_path, "it's (odd)", while_loading=True)
    with ServerProcess(tmp_path, wait="") as server:
        assert server.process is not None
        status = server.process.wait(2 * PATIENCE_S)
        said = server.log
    expected = ["loading version 1 of model 'it's (odd)' (model.onnx)"]
    assert status == -signal.SIGFPE
    assert crash_trace.works(said) == expected
    assert Ending(status, 1.0, said).work == f" while {expected[0]}"


def test_a_crash_while_executing_names_the_model_and_no_other(tmp_path: Path):
    dividing(tmp_path, "dividing", while_loading=False)
    onnx_scale(tmp_path, "innocent")
    with ServerProcess(tmp_path) as server:
        tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [1, 1], "data": [-1]}
        try:
            answered = server.post("/v2/models/dividing/infer", {"inputs": [tensor]})[0]
        except (ConnectionError, http.client.HTTPException):
            answered = 0
        assert answered == 0 or (WORKERS and answered == 503), "a frontend worker may say that the server has ended"
        assert server.process is not None
        status = server.process.wait(PATIENCE_S)
        said = server.log
    assert status == -signal.SIGFPE
    assert crash_trace.works(said) == ["executing version 1 of model 'dividing' (model.onnx)"]


def test_the_output_of_a_models_own_process_is_not_taken_for_the_servers():
    frame = "  File \"x.py\", line 3 in executing version 1 of model 'a' (model.onnx)"
    said = f"INFO a_0: Fatal Python error: Aborted\nINFO a_0: {frame}\n"
    assert crash_trace.works(said) == []
    assert crash_trace.last_words(said) == ""


def test_the_trace_has_the_words_of_an_assertion_and_a_thread_of_the_library():
    frames = [
        f'  File "x.py", line 3 in {crash_trace.frame_name("executing", name, 2, "model.pt")}' for name in ("a", "b")
    ]
    dump = "\n\n".join(f"Thread 0x1 (most recent call first):\n{frame}" for frame in frames)
    said = f"loaded\nFatal Python error: old\n\nruntime.cc:7: Assertion `x' failed.\nFatal Python error: Aborted\n\n{dump}\n"
    assert crash_trace.last_words(said) == "runtime.cc:7: Assertion `x' failed."
    ending = Ending(-signal.SIGABRT, 1.0, said)
    assert ending.work == (
        " while executing version 2 of model 'a' (model.pt) or executing version 2 of model 'b' (model.pt)"
    )
