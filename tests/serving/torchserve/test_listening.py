"""The addresses of TorchServe's APIs, and the settings of config.properties that reach them and the handlers."""

import http.client
import json
import socket
import ssl
from pathlib import Path

from repository.torchserve.snapshot_files import last_snapshot
from tests.support.certificates import Authority
from tests.support.serving_process import PATIENCE_S, ServerProcess
from tests.support.torchserve_archives import archive, model
from tests.support.torchserve_server import TorchServeServer

TELLS = """
import os

def handle(data, context):
    if data is None:
        return None
    secret = os.environ.get("A_SECRET", "hidden")
    return [f"{type(row['body']).__name__} {secret} {context.system_properties.get('batch_size')}" for row in data]
"""
JSON = {"Content-Type": "application/json"}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def test_apis_listen_on_unix_sockets_and_over_tls_and_handlers_see_what_they_may(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "tells.mar", handler=TELLS)
    authority = Authority(tmp_path / "keys")
    pair = authority.sign("server")
    properties = {
        "management_address": f"unix:{tmp_path}/management.sock",
        "inference_address": "https://127.0.0.1:0",
        "certificate_file": pair.cert,
        "private_key_file": pair.key,
        "enable_grpc_ssl": "true",
        "blacklist_env_vars": "A_.*",
        "decode_input_request": "false",
        "batch_size": 3,
        "cors_allowed_origin": "https://shop.example",
        "enable_metrics_api": "false",
        "max_request_size": 1000,
    }
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "management.sock"))  # by a server that was killed
    left.close()
    with TorchServeServer(tmp_path, properties=properties, models=["all"], environment={"A_SECRET": "shown"}) as server:
        unix = _UnixConnection(tmp_path / "management.sock")
        unix.request("GET", "/models")
        response = unix.getresponse()
        assert json.loads(response.read())["models"] == [{"modelName": "tells", "modelUrl": "tells.mar"}]
        assert response.getheader("access-control-allow-origin") == "https://shop.example"
        unix.close()
        host, _, port = server.addresses["torchserve_inference"].rpartition(":")
        trust = ssl.create_default_context(cafile=str(authority.cert))
        secure = http.client.HTTPSConnection(host, int(port), timeout=PATIENCE_S, context=trust)
        secure.request("POST", "/predictions/tells", b"{}", JSON)
        assert secure.getresponse().read() == b"bytearray hidden 3"
        secure.request("POST", "/predictions/tells", b"x" * 2000, JSON)
        assert secure.getresponse().status == 413
        secure.close()
        assert "torchserve_metrics" not in server.addresses
        server.terminate()
    assert not (tmp_path / "management.sock").exists()


def test_apis_with_one_address_share_a_listener(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "tells.mar", handler=TELLS)
    shared = f"unix:{tmp_path}/all.sock"
    properties = dict.fromkeys(("inference_address", "management_address", "metrics_address"), shared)
    with TorchServeServer(tmp_path, properties=properties, models=["tells.mar"]):
        for asked in ("/ping", "/models", "/metrics"):
            unix = _UnixConnection(tmp_path / "all.sock")
            unix.request("GET", asked)
            assert unix.getresponse().status == 200, asked
            unix.close()


def test_models_of_a_repository_are_served_and_listed_and_not_managed(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    model(repository, "tells", handler=TELLS, version="1.0-beta")
    (tmp_path / "config.properties").write_text(
        "inference_address=http://127.0.0.1:0\nmanagement_address=http://127.0.0.1:0\n"
        "metrics_address=http://127.0.0.1:0\ngrpc_inference_port=0\ngrpc_management_port=0\nenable_model_api=true\n"
    )
    flags = (f"--ts-config={tmp_path}/config.properties", "--disable-token-auth")
    with ServerProcess(repository, *flags, cwd=tmp_path) as running:
        ask = TorchServeServer.ask
        answered = ask(running, "torchserve_inference", "POST", "/predictions/tells/1.0-beta", b"{}", JSON)
        assert answered.body == b"dict hidden 1"
        (reported,) = ask(running, "torchserve_management", "GET", "/models/tells").body
        assert (reported["modelVersion"], len(reported["workers"])) == ("1.0-beta", 1)
        listed = ask(running, "torchserve_management", "GET", "/models").body
        assert [row["modelName"] for row in listed["models"]] == ["tells"]
        for method, path in (
            ("POST", "/models?url=x.mar"),
            ("PUT", "/models/tells?min_worker=2"),
            ("DELETE", "/models/tells"),
            ("PUT", "/models/tells/1.0-beta/set-default"),
            ("POST", "/workflows?url=x.war"),
        ):
            refused = ask(running, "torchserve_management", method, path)
            assert (refused.status, refused.body["type"]) == (405, "MethodNotAllowedException"), path
            assert "model repository" in refused.body["message"]


def test_without_the_model_api_nothing_is_registered_and_without_snapshots_none_are_written(tmp_path: Path) -> None:
    archive(tmp_path / "store" / "tells.mar", handler=TELLS)
    with TorchServeServer(tmp_path, "--enable-model-api=false", "--ncs", models=["tells.mar"]) as server:
        for method, path in (
            ("POST", "/models?url=tells.mar&model_name=b"),
            ("DELETE", "/models/tells"),
            ("POST", "/workflows?url=x.war"),
        ):
            assert server.manage(method, path).status == 405
        assert server.manage("PUT", "/models/tells?min_worker=2&synchronous=true").status == 200
    assert last_snapshot(tmp_path / "logs") is None
