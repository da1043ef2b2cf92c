"""TorchServe's protocols on the bundled server: the flag that starts them, their listeners, and the address for clients."""

import os
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from dashboard.playground.client_protocols import ClientProtocol
from dashboard.servers.additions import Listener, ServerAddition
from dashboard.servers.bundled_flags import flag, is_on
from dashboard.shared.exceptions import Invalid
from repository.config.document import Document
from repository.core.errors import InvalidConfig
from repository.torchserve import properties
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.parameters import WORKFLOW
from repository.torchserve.properties import InvalidProperties

_ANYWHERE = ("0.0.0.0", "::", "[::]")  # addresses for a listener, to which clients cannot connect


class TorchServe(ServerAddition):
    """Starts the server with the file of SLIPWAY_TORCHSERVE_CONFIG, which is read before any process starts."""

    def flags(self) -> Mapping[str, object]:
        return {} if settings.TORCHSERVE_CONFIG is None else {"--ts-config": settings.TORCHSERVE_CONFIG}

    def listeners(self) -> list[Listener]:
        path = settings.TORCHSERVE_CONFIG
        if path is None:
            return []
        if not path.is_file():
            raise Invalid("nothing was started, because SLIPWAY_TORCHSERVE_CONFIG names no file")
        try:
            options = _options(path)
        except InvalidProperties as error:
            raise Invalid(f"nothing was started, because {error}") from None
        found = [
            Listener(
                f"TorchServe, {title}", _setting(name), address.host, address.port, "https" if address.tls else "http"
            )
            for title, name, address in (
                ("inference", "inference_address", options.inference_address),
                ("management", "management_address", options.management_address),
                ("metrics", "metrics_address", options.metrics_address),
            )
            if address.socket is None and (name != "metrics_address" or options.enable_metrics_api)
        ]
        for title, name, host, port in (
            ("gRPC", "grpc_inference_port", options.grpc_inference_address, options.grpc_inference_port),
            ("gRPC, management", "grpc_management_port", options.grpc_management_address, options.grpc_management_port),
        ):
            found.append(Listener(f"TorchServe, {title}", _setting(name), host, port))
        return found

    def working_folder(self) -> Path | None:
        """Return the folder in which the server runs; there it writes TorchServe's key file and logs."""
        if settings.TORCHSERVE_CONFIG is None:
            return None
        folder: Path = settings.DATA_DIR / "torchserve"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder


class Predictions(ClientProtocol):
    """TorchServe's inference API."""

    name = "torchserve"
    snippet, label = "predictions", "curl, TorchServe"
    streams = "TorchServe’s API, which sends each part in a chunk"

    def address(self) -> str:
        config = settings.TORCHSERVE_CONFIG or flag("--ts-config")
        if not config and not is_on("--torchserve"):
            return ""
        try:
            options = _options(Path(config)) if config else TorchServeOptions()
        except (OSError, InvalidProperties):  # with this error the server does not start either
            return ""
        address = options.inference_address
        if address.socket is not None:
            return ""
        host = "127.0.0.1" if address.host in _ANYWHERE else address.host
        return f"{'https' if address.tls else 'http'}://{host}:{address.port}"

    def facts(self, document: Document) -> Mapping[str, bool]:
        """Return facts about a model. workflow: whether it is an ensemble that was made from a workflow."""
        try:
            return {"workflow": WORKFLOW in document.message.parameters}
        except InvalidConfig:
            return {"workflow": False}


TORCHSERVE = TorchServe()
PREDICTIONS = Predictions()


def _setting(name: str) -> str:
    return f"{name} in config.properties"


def _options(path: Path) -> TorchServeOptions:
    options, _ = properties.torchserve_options(properties.read(path, os.environ), os.environ)
    return options
