"""The layout of KServe's samples of TorchServe: config/config.properties and model-store/, over V1 and V2."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kserve import KServeProcess
from tests.support.torchserve_archives import archive

# Each instance, or input, is a row of numbers.
SUMS = """
import numpy

def handle(data, context):
    if data is None:
        return None
    return [int(numpy.sum(row["data"])) for row in data]
"""
SNAPSHOT = {
    "name": "startup.cfg",
    "modelCount": 1,
    "models": {"mnist": {"1.0": {"defaultVersion": True, "marName": "mnist.mar", "minWorkers": 1, "maxWorkers": 1}}},
}


@pytest.fixture(params=["kserve", "kservev2"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KServeProcess]:
    """What the storage initializer leaves for image_classifier/v1 and /v2; only the ports of its gRPC are free ones."""
    (tmp_path / "config").mkdir()
    properties = (
        "inference_address=http://0.0.0.0:8085\nmanagement_address=http://0.0.0.0:8085\n"
        "metrics_address=http://0.0.0.0:8082\ngrpc_inference_port=0\ngrpc_management_port=0\nenable_metrics_api=true\n"
        f"enable_envvars_config=true\nmodel_store=/mnt/models/model-store\nmodel_snapshot={json.dumps(SNAPSHOT)}\n"
    )
    (tmp_path / "config" / "config.properties").write_text(properties)
    archive(tmp_path / "model-store" / "mnist.mar", handler=SUMS)
    server = KServeProcess("slipway-torchserve", tmp_path, "torchserve", envelope=request.param, cwd=tmp_path)
    with server:
        yield server


def test_the_samples_archive_is_served(server: KServeProcess, tmp_path: Path) -> None:
    assert server.get("/v1/models/mnist") == (200, {"name": "mnist", "ready": True})
    assert server.get("/v2/models/mnist/ready")[0] == 200
    if server.environment["TS_SERVICE_ENVELOPE"] == "kserve":
        status, said = server.post("/v1/models/mnist:predict", {"instances": [{"data": [1, 2]}, {"data": [3, 4]}]})
        assert (status, said) == (200, {"predictions": [3, 7]})
    else:
        tensor = {"name": "x", "shape": [1, 2], "datatype": "INT64", "data": [1, 2]}
        status, said = server.post("/v2/models/mnist/infer", {"id": "mine", "inputs": [tensor]})
        assert (status, said["id"], said["outputs"][0]["data"]) == (200, "mine", [3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "model-store"]  # it may be read-only
