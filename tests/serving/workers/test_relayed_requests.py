"""Requests that a frontend worker hands on to the core whole: management over HTTP."""

from pathlib import Path

import httpx

from tests.support.model_factory import onnx_identity
from tests.support.serving_process import PATIENCE_S, ServerProcess


def test_the_core_gets_the_query_too(tmp_path: Path) -> None:
    onnx_identity(tmp_path, "identity")
    with ServerProcess(tmp_path, "--frontend-workers=1") as server:
        answer = httpx.get(
            f"{server.http_url}/v2/slipway/models/identity/traffic/mismatches?after=x%20y", timeout=PATIENCE_S
        )
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("expected 'after' to be the id of a mismatch")
