"""A set-up of TorchServe's moves into the dashboard, and its clients go on as they were."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.ports import HOST, free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until
from tests.support.torchserve_archives import archive, war
from tests.support.up_process import Up

pytestmark = pytest.mark.long

HANDLER = """
def handle(data, context):
    return None if data is None else [{"version": VERSION} for _ in data]
"""
ADDS = """
def handle(data, context):
    return data if data is None else [bytes(row.get("body") or row.get("data")).decode() + " one" for row in data]
"""


def write_set_up(folder: Path, ports: list[int]) -> Path:
    for version in ("1.0", "2.0"):
        source = f'VERSION = "{version}"\n{HANDLER}'
        archive(folder / "model_store" / f"told-{version}.mar", "told", version=version, handler=source)
    archive(folder / "model_store" / "adds.mar", handler=ADDS)
    war(folder / "model_store" / "flow.war", "flow", "models: {one: {url: adds.mar}}\ndag: {pre: [one], one: [post]}\n")
    models = {"told": {"1.0": {"defaultVersion": True, "marName": "told-1.0.mar", "minWorkers": 1, "batchSize": 2}}}
    addresses = zip(("inference_address", "management_address", "metrics_address"), ports[:3], strict=True)
    lines = [f"{name}=http://{HOST}:{port}" for name, port in addresses]
    lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}", "enable_model_api=true"]
    lines += [
        "disable_token_authorization=true",
        "model_store=model_store",
        "load_models=all",
        "number_of_netty_threads=4",
    ]
    lines += [f"models={json.dumps(models)}", "default_workers_per_model=1"]
    config = folder / "config.properties"
    config.write_text("\n".join(lines) + "\n")
    return config


def test_old_clients_go_on_while_the_dashboard_has_the_models(tmp_path: Path) -> None:
    ports = free_ports(5)
    config = write_set_up(tmp_path / "old", ports)
    with Up(tmp_path / "data", SLIPWAY_TORCHSERVE_CONFIG=str(config)) as up:
        command = [sys.executable, "manage.py", "import_torchserve", str(config)]
        done = subprocess.run(
            command, cwd=ROOT, env=up.environment, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "told 2.0 (told-2.0.mar): taken as version 2" in done.stdout
        assert "number_of_netty_threads has no meaning" in done.stdout
        up.start()
        assert f"http://{HOST}:{ports[0]}" in up.output
        inference, management = (f"http://{HOST}:{port}" for port in ports[:2])
        predict = f"{inference}/predictions/told"
        wait_until(lambda: httpx.post(predict, content=b"x", timeout=PATIENCE_S).status_code == 200, what="it predicts")
        answers = [httpx.post(f"{predict}{path}", content=b"x", timeout=PATIENCE_S).json() for path in ("", "/2.0")]
        assert answers == [{"version": "1.0"}, {"version": "2.0"}]
        listed = httpx.get(f"{management}/models", timeout=PATIENCE_S).json()["models"]
        assert "told" in [row["modelName"] for row in listed]
        flow = f"{inference}/wfpredict/flow"
        wait_until(lambda: httpx.post(flow, content=b"x", timeout=PATIENCE_S).text == "x one post", what="it flows")
        described = httpx.get(f"{management}/workflows/flow", timeout=PATIENCE_S).json()
        assert described[0]["workflowDag"] == "{pre=[one], one=[post]}"
        assert (
            httpx.get(f"{management}/workflows", timeout=PATIENCE_S).json()["workflows"][0]["workflowUrl"] == "flow.war"
        )
        refused = httpx.post(f"{management}/models?url=other.mar", timeout=PATIENCE_S)
        assert refused.status_code == 405
        assert "dashboard" in refused.json()["message"]
        said = up.query(
            "SELECT desired_state, number FROM dashboard_model m JOIN dashboard_version v ON v.model_id = m.id "
            "WHERE name = 'told' ORDER BY number"
        )
        assert said == [("loaded", 1), ("loaded", 2)]
        ready = (
            "SELECT version FROM dashboard_modelstate WHERE model_name = 'told' AND state = 'READY' ORDER BY version"
        )
        wait_until(lambda: [int(row[0]) for row in up.query(ready)] == [1, 2], what="the dashboard sees both live")
