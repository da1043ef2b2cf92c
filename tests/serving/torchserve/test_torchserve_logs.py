"""The files that log shippers read beside TorchServe: their lines as its Log4j writes them, and their bounds."""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from serving.telemetry.log_rotation import KEPT
from serving.torchserve.apis import messages
from serving.torchserve.telemetry.log_file import LogFile
from tests.support.serving_process import wait_until
from tests.support.torchserve_archives import archive
from tests.support.torchserve_server import TorchServeServer

PRINTS = """
def handle(data, context):
    if data is None:
        return None
    print("one line")
    return ["told"] * len(data)
"""
AT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeServer]:
    folder = tmp_path_factory.mktemp("logs")
    archive(folder / "store" / "prints.mar", handler=PRINTS)
    with TorchServeServer(folder, models=["all"]) as running:
        yield running


def lines(server: TorchServeServer, name: str) -> list[str]:
    path = server.folder / "logs" / name
    return path.read_text().splitlines() if path.exists() else []


def wait_for(server: TorchServeServer, name: str, pattern: str) -> None:
    wait_until(
        lambda: any(re.fullmatch(f"{AT} {pattern}", line) for line in lines(server, name)), what=f"{pattern} in {name}"
    )


def test_each_request_is_a_line_of_the_access_log(server: TorchServeServer) -> None:
    assert server.predict("/predictions/prints?x=1%202", b"x").body == b"told"
    assert server.manage("GET", "/models/no%0Abody").status == 404
    with grpc.insecure_channel(server.addresses["torchserve_grpc_inference"]) as channel:
        call = channel.unary_unary(
            f"/{messages.INFERENCE}.InferenceAPIsService/Predictions",
            request_serializer=lambda message: message.SerializeToString(),
        )
        with pytest.raises(grpc.RpcError):
            call(messages.PredictionsRequest(model_name="nobody"))
    for request in (
        r'"POST /predictions/prints\?x=1%202 HTTP/1\.1" 200',
        r'"GET /models/no%0Abody HTTP/1\.1" 404',
        rf'"gRPC {messages.INFERENCE}\.InferenceAPIsService/Predictions HTTP/2\.0" 13',
    ):
        wait_for(server, "access_log.log", rf"- /127\.0\.0\.1:\d+ {request} \d+")


def test_output_and_metrics_of_handlers_have_a_file_each(server: TorchServeServer) -> None:
    server.predict("/predictions/prints", b"x")
    wait_for(server, "model_log.log", r"\[INFO \] W-9000-prints_1\.0-stdout MODEL_LOG - one line")
    rest = r"\|#hostname:[^,]+,timestamp:\d+"
    wait_for(server, "ts_metrics.log", rf"- MemoryUsed\.Megabytes:[\d.]+\|#Level:Host{rest}")  # at start
    wait_for(server, "ts_metrics.log", rf"- Requests2XX\.Count:\d\.0\|#Level:Host{rest}")
    wait_for(server, "model_metrics.log", rf"- PredictionTime\.ms:[\d.]+\|#ModelName:prints,Level:Model{rest}")


def test_a_file_stays_within_its_bounds_and_is_begun_anew_where_it_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "new" / "access_log.log"
    file = LogFile(path, longest=10)
    for number in range(KEPT + 3):
        file.append(f"line {number} of them\n")
    assert len(list(path.parent.iterdir())) == KEPT + 1
    assert path.read_text() == f"line {KEPT + 2} of them\n"
    path.replace(tmp_path / "moved")
    file.append("after\n")
    assert path.read_text() == "after\n"
    file.close()


def test_a_folder_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    file = LogFile(tmp_path / "file" / "access_log.log")
    file.append("lost\n")
    assert [record.getMessage() for record in caplog.records] == ["access_log.log cannot be written: File exists"]
