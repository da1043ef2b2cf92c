"""A shutdown with workers loses no request: each connection is answered until the answer that says that it closes."""

import http.client
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

BODY = '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}'


def ask_on(server: ServerProcess, began: Event) -> int:
    """Ask again and again until the connection closes; how many answers came. Any other than 200 raises."""
    host, _, port = server.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    answered = 0
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        connection.request("POST", "/v2/models/scale/infer", BODY)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        answered += 1
        began.set()
        if answer.getheader("Connection") == "close":
            connection.close()
            return answered
    raise AssertionError("the connection did not close")


def test_no_request_is_lost_while_the_server_ends(tmp_path: Path) -> None:
    onnx_scale(tmp_path)
    with ServerProcess(tmp_path, "--frontend-workers=2") as server, ThreadPoolExecutor(8) as pool:
        begun = [Event() for _ in range(8)]
        clients = [pool.submit(ask_on, server, one) for one in begun]
        wait_until(lambda: all(one.is_set() for one in begun), what="the first answer of each")
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        assert all(client.result(PATIENCE_S) > 0 for client in clients)
        assert server.process.wait(PATIENCE_S) == 0
        assert "Traceback" not in server.log
