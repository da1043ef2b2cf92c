"""Where a server listens and where it writes its log: shared ports, IPv6, a log that is moved away."""

from pathlib import Path

import httpx
import pytest

from tests.support.model_factory import onnx_scale
from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

HAS_IPV6 = Path("/proc/net/if_inet6").exists() and Path("/proc/net/if_inet6").read_text().strip()


def test_servers_share_ports_where_all_of_them_say_so(tmp_path: Path) -> None:
    ports = (f"--http-port={free_port()}", f"--grpc-port={free_port()}")
    flags = ("--reuse-http-port=true", "--reuse-grpc-port=true", *ports)
    with ServerProcess(tmp_path, *flags) as first, ServerProcess(tmp_path, *flags) as second:
        assert (first.http, first.grpc) == (second.http, second.grpc)
        second.terminate()
        with ServerProcess(tmp_path, *ports, "--drain-secs=3600", wait="") as third:  # which nobody was sent to
            assert third.process is not None
            assert third.process.wait(PATIENCE_S) == 1
            assert (
                f"failed to start HTTP service: Unavailable - Socket '127.0.0.1:{first.http.rpartition(':')[2]}' already in use"
                in third.log
            )
        assert httpx.get(f"{first.http_url}/v2/health/ready", timeout=PATIENCE_S).status_code == 200


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
def test_a_server_listens_on_ipv6(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--http-address=ipv6:[::1]", "--grpc-address=[::1]") as server:
        assert server.http.startswith("[::1]:")
        assert httpx.get(f"{server.http_url}/v2/health/ready", timeout=PATIENCE_S).status_code == 200


def test_the_log_goes_to_a_file_and_on_in_a_new_one_when_that_is_moved(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    onnx_scale(tmp_path / "models")
    flags = ("--model-control-mode=explicit", f"--log-file={path}")
    with ServerProcess(tmp_path / "models", *flags) as server:
        wait_until(lambda: "listens on" in path.read_text(), what="the log")
        assert server.log == ""
        path.rename(tmp_path / "old.log")
        assert server.post("/v2/repository/models/scale/load")[0] == 200
        wait_until(lambda: path.exists() and "loaded 'scale'" in path.read_text(), what="a new log")
        assert server.get("/v2/logging")[1]["log_file"] == "", "where it lies is not for clients"


def test_a_log_that_cannot_be_written_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, f"--log-file={tmp_path / 'absent' / 'server.log'}", wait="") as server:
        assert server.process is not None
        assert server.process.wait(PATIENCE_S) == 1
        assert "--log-file: cannot write the log" in server.log
