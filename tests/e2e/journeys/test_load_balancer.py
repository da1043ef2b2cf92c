"""A rolling restart behind a load balancer loses no request: not ready first, then closed with notice."""

import signal
from pathlib import Path

import pytest
import tritonclient.grpc
import uvloop

from benchmarks.rolling_upgrade import KINDS, Fleet, Load
from tests.serving.frontends.http2 import http2_peer as h2
from tests.serving.frontends.http2.http2_peer import Peer
from tests.support.engines import HAPROXY
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

BODY = '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}'
PAUSE_S = 0.01  # `make rolling-upgrade` sends as many requests as it can


@pytest.mark.long
@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_rolling_upgrade_behind_haproxy_loses_no_request(tmp_path: Path, workers: int) -> None:
    async def main(fleet: Fleet) -> None:
        async with Load(fleet, clients=1, pause_s=PAUSE_S).running() as load:
            for number in range(2):
                await fleet.replace(number, signal.SIGTERM, load)
        assert load.failures == {}
        assert all(load.asked[kind] for kind in KINDS)

    flags = (f"--frontend-workers={workers}", "--behind-load-balancer=true", "--drain-secs=2")
    ages = ("--http-max-connection-age=2000", "--grpc-max-connection-age=2000")
    with Fleet(tmp_path, *flags, *ages).running() as fleet:
        uvloop.run(main(fleet))


@pytest.mark.long
@pytest.mark.skipif(HAPROXY is None, reason="haproxy is not installed")
def test_a_killed_server_loses_only_what_it_was_answering(tmp_path: Path) -> None:
    async def main(fleet: Fleet) -> None:
        async with Load(fleet, clients=2, pause_s=PAUSE_S).running() as load:
            await fleet.replace(0, signal.SIGKILL, load)
        assert load.failures.total() <= 2 * len(KINDS)

    with Fleet(tmp_path).running() as fleet:
        uvloop.run(main(fleet))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_is_told_to_end_is_not_ready_and_serves_new_connections_first(
    tmp_path: Path, workers: int
) -> None:
    onnx_scale(tmp_path)
    with (
        ServerProcess(tmp_path, f"--frontend-workers={workers}", "--drain-secs=8") as server,
        Peer(server.grpc) as peer,
    ):
        assert peer.is_served(1)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/v2/health/ready")[0] != 200, what="its being not ready")
        assert server.get("/v2/health/live")[0] == 200
        status, answer = server.request("POST", "/v2/models/scale/infer", BODY)
        assert status == 200, answer
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_server_live()
            assert not client.is_server_ready()
        assert peer.is_served(3)
        assert peer.next(h2.GOAWAY).code == 0
        assert server.process.wait(PATIENCE_S) == 0


def test_a_server_alone_ends_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert server.terminate() == 0
        assert "--drain-secs" not in server.log
