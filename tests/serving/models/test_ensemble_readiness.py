"""An ensemble is ready while its steps are, and every report of its readiness agrees."""

from pathlib import Path
from typing import Any

import tritonclient.grpc

from tests.support import pipelines
from tests.support.serving_process import ServerProcess


def test_an_ensemble_is_ready_while_its_steps_are(tmp_path: Path) -> None:
    """Unloading one of them takes the ensemble out of service, as in Triton; loading it brings both back."""
    pipelines.ensemble(tmp_path, pipelines.chain(tmp_path), "inner")
    pipelines.ensemble(tmp_path, pipelines.step("inner", {"X": "X"}, {"Y": "Y"}), "outer")
    body = {"inputs": [{"name": "X", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--load-model=outer") as server:

        def control(action: str) -> None:
            assert server.post(f"/v2/repository/models/double/{action}")[0] == 200

        def ready(name: str) -> bool:
            return server.get(f"/v2/models/{name}/ready")[0] == 200

        def row(name: str) -> dict[str, Any]:
            return next(row for row in server.post("/v2/repository/index")[1] if row["name"] == name)

        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            assert client.is_model_ready("outer")
            control("unload")
            assert not client.is_model_ready("outer")
            assert not ready("inner")
            for name in ("inner", "outer"):
                assert (row(name)["state"], row(name)["condition"]) == ("UNAVAILABLE", "stepless")
                assert "its step 'double' is not ready" in row(name)["reason"]
            assert row("triple")["state"] == "READY"
            status, answer = server.post("/v2/models/outer/infer", body)
            assert status == 503
            assert "step 'double'" in answer["error"]
            control("load")
            assert client.is_model_ready("outer")
            assert (row("outer")["state"], row("outer").get("reason", "")) == ("READY", "")
            status, answer = server.post("/v2/models/outer/infer", body)
            assert (status, answer["outputs"][0]["data"]) == (200, [6.0])
