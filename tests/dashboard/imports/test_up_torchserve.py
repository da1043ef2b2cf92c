"""`manage.py up` with SLIPWAY_TORCHSERVE_CONFIG: what the server is told, and what is said before anything starts."""

import socket
from pathlib import Path
from typing import Any

import pytest

from dashboard.servers.additions import listeners, ports_by_host
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.supervisor import commands
from dashboard.supervisor.preflight import check_ports
from tests.support.ports import HOST


@pytest.fixture
def config(settings: Any, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    settings.TORCHSERVE_CONFIG = tmp_path / "config.properties"
    settings.TORCHSERVE_CONFIG.write_text(
        "management_address=http://127.0.0.1:8080\n"
    )  # which the inference API has too
    return tmp_path / "config.properties"


def test_the_server_listens_by_the_file_in_a_folder_of_its_own(config: Path) -> None:
    spec = next(one for one in commands.process_specs() if one.name == "server")
    assert f"--ts-config={config}" in commands.server_arguments()
    assert (spec.folder, spec.folder.is_dir()) == (config.parent / "torchserve", True)
    assert ports_by_host(listeners()) == {
        HOST: {
            "inference_address in config.properties": 8080,
            "metrics_address in config.properties": 8082,
            "grpc_inference_port in config.properties": 7070,
            "grpc_management_port in config.properties": 7071,
        }
    }


def test_a_port_that_the_old_server_still_has_is_named_by_its_property(config: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(f"inference_address=http://{HOST}:{port}\n")
        with pytest.raises(Conflict, match=rf"port {port} on .* is taken: free it, or set inference_address in config"):
            check_ports(HOST, ports_by_host(listeners())[HOST])


def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(config: Path) -> None:
    config.write_text("inference_address=nowhere\n")
    with pytest.raises(Invalid, match="inference_address: expected http"):
        listeners()
    config.unlink()
    with pytest.raises(Invalid, match="SLIPWAY_TORCHSERVE_CONFIG names no file"):
        listeners()
