"""A real `python -m serving` whose models are registered through TorchServe's APIs.

with TorchServeServer(folder, properties={"batch_size": 4}, models=["noop=noop.mar"]) as server:
    server.manage("POST", "/models?url=other.mar")      -> Answered(status, body, headers)
"""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.serving_process import PATIENCE_S, ServerProcess

ANY_PORT = {
    "inference_address": "http://127.0.0.1:0",
    "management_address": "http://127.0.0.1:0",
    "metrics_address": "http://127.0.0.1:0",
    "grpc_inference_port": "0",
    "grpc_management_port": "0",
    "default_workers_per_model": "1",
}


class Answered(NamedTuple):
    """An answer over HTTP. The body is decoded if it is JSON. Names of headers are in lower case."""

    status: int
    body: Any
    headers: dict[str, str]


class TorchServeServer(ServerProcess):
    """folder: the working directory, with the archives in `store`. properties: for config.properties, in addition to ports."""

    def __init__(
        self,
        folder: Path,
        *flags: str,
        properties: Mapping[str, object] | None = None,
        models: list[str] | None = None,
        tokens: bool = False,
        **settings: Any,
    ) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.store.mkdir(parents=True, exist_ok=True)
        self.config = folder / "config.properties"
        lines = {**ANY_PORT, **{key: str(value) for key, value in (properties or {}).items()}}
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        own = ["--ts-config=config.properties", "--model-store=store", "--enable-model-api"]
        own += [] if tokens else ["--disable-token-auth"]
        own += ["--models", *models] if models else []
        super().__init__([], *own, *flags, cwd=folder, **settings)

    def manage(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answered:
        """Call the management API. A body that is no text is sent as JSON."""
        return self.ask("torchserve_management", method, path, body, headers)

    def predict(self, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answered:
        """Call the inference API."""
        return self.ask("torchserve_inference", "POST", path, body, headers)

    def ask(
        self, listener: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answered:
        sent = dict(headers or {})
        if body is not None and not isinstance(body, str | bytes):
            sent.setdefault("Content-Type", "application/json")
            body = json.dumps(body)
        host, _, port = self.addresses[listener].rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        reported = {name.lower(): value for name, value in response.getheaders()}
        try:
            return Answered(response.status, json.loads(content), reported)
        except ValueError:
            return Answered(response.status, content, reported)
