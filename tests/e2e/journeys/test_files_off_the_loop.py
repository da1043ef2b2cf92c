"""Nothing on the event loop opens, locks or syncs a file: one slow disk would hold up every client."""

import json
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.support import model_factory
from tests.support.guarded_loop import GUARD, guarded_server
from tests.support.serving_process import PATIENCE_S, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}


def _repository(folder: Path) -> Path:
    repository = folder / "models"
    model_factory.onnx_scale(repository, "scale")
    model_factory.python_scale(repository, "python", factor=2)
    asleep = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'
    model_factory.onnx_scale(repository, "asleep", extra=asleep)
    return repository


def _everything(server, kind: str) -> None:
    """What clients and operators do."""
    with client_of(server, kind) as client:
        for model in ("scale", "python", "asleep"):
            assert client.infer(model, ONE).outputs
        for model in ("absent", "soon"):
            with pytest.raises(InferenceServerException):
                client.infer(model, ONE)
        for described in ("get_model_config", "get_inference_statistics", "get_model_metadata"):
            client.described(described, "scale")
        for _ in range(10):
            client.call("load_model", "scale")
            client.call("unload_model", "scale")
        client.call("load_model", "scale")
        client.call("get_model_repository_index")
        client.call("update_trace_settings", model_name="scale", settings={"trace_rate": "1"})
        client.call("update_log_settings", {"log_verbose_level": 1})
        region = shm.create_shared_memory_region("data", f"/slipway-guard-{kind}", 64)
        try:
            client.call("register_system_shared_memory", "data", f"/slipway-guard-{kind}", 64)
            client.call("unregister_system_shared_memory", "data")
        finally:
            shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize("workers", [0, 2])
def test_requests_and_administration_open_no_file_on_the_loop(tmp_path: Path, workers: int) -> None:
    repository = _repository(tmp_path)
    wanted, tokens = tmp_path / "wanted.json", tmp_path / "auth.json"
    wanted.write_text('["scale", "soon"]')
    tokens.write_text('{"tokens": []}')
    flags = [
        *("--model-control-mode=explicit", "--load-model=*", "--allow-client-shm=true", "--log-verbose=1"),
        *(f"--trace-config=triton,file={tmp_path}/trace", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"),
        *(f"--request-log={tmp_path}/requests", f"--log-file={tmp_path}/log", "--log-file-max-bytes=2000"),
        *(f"--wanted-models-file={wanted}", f"--traffic-state={tmp_path}/traffic.json"),
        *([f"--frontend-workers={workers}"] if workers else []),
    ]
    with guarded_server(tmp_path, repository, *flags) as (server, calls):
        for kind in PROTOCOLS:
            _everything(server, kind)
        wanted.write_text("[]")
        wait_until(lambda: (tmp_path / "log.1").exists(), what="a log file that has been rotated")
        assert httpx.get(server.metrics_url, timeout=PATIENCE_S).status_code == 200
        assert calls() == []


def test_what_polls_its_repository_opens_no_file_on_the_loop(tmp_path: Path) -> None:
    repository = _repository(tmp_path)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with guarded_server(tmp_path, repository, *flags) as (server, calls):
        model_factory.onnx_scale(repository, "late")
        with client_of(server, "http") as client:
            wait_until(lambda: client.call("is_model_ready", "late"), what="the new model")
            assert client.infer("late", ONE).outputs
        assert calls() == []


def test_the_guard_finds_what_a_running_loop_does(tmp_path: Path) -> None:
    log = tmp_path / "guard"
    program = f"""
import asyncio, os
async def main():
    with open({str(tmp_path / "file")!r}, "w") as file:
        os.fsync(file.fileno())
    os.replace({str(tmp_path / "file")!r}, {str(tmp_path / "other")!r})
    await asyncio.to_thread(lambda: open({str(tmp_path / "other")!r}).close())
open({str(tmp_path / "before")!r}, "w").close()
asyncio.run(main())
"""
    environment = {"LOOP_GUARD": str(log), "PYTHONPATH": str(GUARD)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=PATIENCE_S)
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    own = [call["what"] for call in calls if str(tmp_path) in call["path"] or call["what"] == "os.fsync"]
    assert own == ["open", "os.fsync", "os.rename"]
