"""A child that breaks the protocol: user code is not trusted, so what it sends is checked, and it is ended."""

from collections.abc import Iterator
from unittest.mock import Mock

import numpy as np
import pytest

from serving.backends.base.backend import BackendInstance
from serving.core.errors import Code
from serving.resources.runtime import Runtime
from tests.serving.instances import execute, infer, python_instance, request
from tests.support.serving_process import open_files, wait_until

pytestmark = pytest.mark.long
GOOD = np.array([["pass"]], np.object_)
TENSORS = [("STATEMENT", "BYTES", [1])], [("OUTPUT0", "FP32", [1])]

# It runs the statement that a request brings, and gives no other answer to any but `pass`.
SOURCE = """
    import gc
    import os
    import socket
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from serving.backends.channel.packet_channel import PacketChannel
    from serving.child_program.pb_utils.process import server

    class TritonPythonModel:
        def execute(self, requests):
            [statement] = requests[0].inputs()[0].as_numpy().flat
            if statement != b"pass":
                channel = next(one for one in gc.get_objects() if isinstance(one, PacketChannel))
                link, key = server(), requests[0].key
                exec(statement)
                time.sleep(600)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.ones((1, 1), np.float32))])]
"""


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendInstance]:
    """One for all tests: each ends its process, and finds the next one in its place."""
    runtime = Runtime(Mock(), Mock(), Mock(), Mock())
    with python_instance(
        tmp_path_factory.mktemp("protocol"), SOURCE, runtime, inputs=TENSORS[0], outputs=TENSORS[1]
    ) as made:
        yield made


def sealed(size: int) -> str:
    return (
        "import fcntl; fd = os.memfd_create('x', os.MFD_ALLOW_SEALING); "
        f"os.ftruncate(fd, {size}); fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK); "
    )


def result(row: str, segment: int = 9) -> str:
    return f"channel.send([{segment}, [{{'outputs': [{row}]}}], []], [fd])"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("channel._send(b'nonsense')", "a message is not JSON"),
        ("channel._send(b'[' * 4000)", "a message is not JSON"),
        ("channel._send(b'+'); channel._send(b'*')", "descriptors were announced, and none came"),
        ("channel.send('x' * 5000)", ""),
        ("channel.send([0, [], []], [0] * 9)", ""),
        ("channel.send({})", ""),
        ("channel.send([])", ""),
        ("channel.send(7)", ""),
        ("channel.send({'op': 'result'})", ""),
        ("channel.send([0, [], []])", "1 responses were expected"),
        ("channel.send([0, [7], []])", ""),
        ("channel.send([0, [{}], 3])", ""),
        ("channel.send([77, [{}], []])", "segment 77 is unknown"),
        ("channel.send([[1], [{}], []])", ""),
        ("fd = os.memfd_create('x'); os.ftruncate(fd, 99); " + result("['OUTPUT0','FP32',[1],0,4]"), "not sealed"),
        ("fd = os.open('/etc/hostname', os.O_RDONLY); " + result("['OUTPUT0','FP32',[1],0,4]"), "cannot be mapped"),
        (sealed(64) + result("['OUTPUT0','FP32',[1],64,4]"), "end at byte 68 of a segment of 64"),
        (sealed(64) + result("['OUTPUT0','FP32',[1],-4,4]"), "badly described"),
        (sealed(64) + result("['OUTPUT0','FP32',[-1],0,4]"), "badly described"),
        (sealed(64) + result("['OUTPUT0','FP32',[1]*99,0,4]"), "badly described"),
        (sealed(64) + result("['OUTPUT0','FP32',[1.0],0,4]"), "badly described"),
        (sealed(64) + result("['OUTPUT0','FP32',[1000000],0,4]"), "not those of its shape"),
        (sealed(64) + result("['OUTPUT0','BYTES',[10**12],0,8]"), ""),
        (sealed(64) + result("['OUTPUT0','BYTES',[1],0,8]"), ""),
        (sealed(64) + result("['OUTPUT0','PICKLE',[1],0,4]"), ""),
        (sealed(64) + result("['OUTPUT0']"), ""),
    ],
)
def test_a_child_that_breaks_the_protocol_is_ended_and_restarted(instance, statement, expected):
    message = message_of(instance, statement)
    assert "the model's process was ended because it broke the protocol" in message
    assert expected in message


def message_of(instance: BackendInstance, statement: str) -> str:
    """The error that a request with the statement is answered with; the next ones are served, and nothing stays open."""
    assert infer(instance, {"STATEMENT": GOOD})["OUTPUT0"] == 1
    before = open_files()
    [answer] = execute(instance, request({"STATEMENT": np.array([[statement]], np.object_)}))
    assert answer.code is Code.INTERNAL
    message = answer.message
    del answer  # with its traceback
    assert infer(instance, {"STATEMENT": GOOD})["OUTPUT0"] == 1
    wait_until(lambda: open_files() <= before, what="the end of every descriptor")
    return message


INFER = (
    "{'op': 'infer', 'id': 1, 'model': 'x', 'version': '', 'request_id': '', 'inputs': [], 'requested': [], "
    "'parameters': {}, 'priority': 0, 'timeout': 0, 'sequence': 0, 'flags': 0, 'trace': 0, 'made_for': None} | "
)


@pytest.mark.parametrize(
    "statement",
    [
        "link._end.sendall(b'nonsense that is not a frame')",
        "link.tell({})",
        "link.tell({'op': 'unknown'})",
        "link.tell({'op': 'cancelled'})",
        "link.tell({'op': 'cancelled', 'key': [], 'id': 1})",
        "link.tell({'op': 'cancelled', 'key': 1})",
        "link.tell({'op': 'response', 'key': 'x', 'final': True})",
        "link.tell({'op': 'response', 'key': key, 'final': 'yes'})",
        "link.tell({'op': 'response', 'key': key, 'final': False})",
        "link.tell({'op': 'response', 'key': key, 'final': True, 'outputs': [['OUTPUT0', 'FP32', [1], 0, 4]]})",
        "link.tell({'op': 'cancel', 'ask': []})",
        f"link.tell({INFER} {{'model': 7}})",
        f"link.tell({INFER} {{'inputs': [['X', 'FP32', [1], 0, 4]]}})",
        f"link.tell({INFER} {{'timeout': -1}})",
        f"link.tell({INFER} {{'sequence': 1.5}})",
        f"link.tell({INFER} {{'parameters': {{'a': [1]}}}})",
        "link.tell({'op': 'load', 'id': 1, 'model': 'x', 'config': '', 'files': {'a': '!'}})",
        "link.tell({'op': 'metric_change', 'number': 5, 'how': 'increment', 'value': 1})",
    ],
)
def test_a_child_that_calls_nonsense_is_ended_and_restarted(instance, statement):
    assert "the model's process was ended by signal SIGKILL" in message_of(instance, statement)
