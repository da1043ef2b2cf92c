"""TorchServe's protocols at the bundled server: where it listens by SLIPWAY_TORCHSERVE_CONFIG, known before anything starts."""

import os
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import Invalid
from repository.torchserve import properties
from repository.torchserve.properties import InvalidProperties


@dataclass(frozen=True, slots=True)
class Listener:
    """One listener of TorchServe's. name: its property, or properties."""

    title: str
    name: str
    host: str
    port: int
    scheme: str = ""  # of its address, "" for gRPC


def listeners() -> list[Listener]:
    """Return where the server will listen in TorchServe's protocols, but for Unix sockets; [] without such a configuration.

    Invalid: config.properties cannot be used.
    """
    path = settings.TORCHSERVE_CONFIG
    if path is None:
        return []
    if not path.is_file():
        raise Invalid("nothing was started, because SLIPWAY_TORCHSERVE_CONFIG names no file")
    try:
        options, _ = properties.torchserve_options(properties.read(path, os.environ), os.environ)
    except InvalidProperties as error:
        raise Invalid(f"nothing was started, because {error}") from None
    found = [
        Listener(title, name, address.host, address.port, "https" if address.tls else "http")
        for title, name, address in (
            ("TorchServe, inference", "inference_address", options.inference_address),
            ("TorchServe, management", "management_address", options.management_address),
            ("TorchServe, metrics", "metrics_address", options.metrics_address),
        )
        if address.socket is None and (name != "metrics_address" or options.enable_metrics_api)
    ]
    found.append(
        Listener("TorchServe, gRPC", "grpc_inference_port", options.grpc_inference_address, options.grpc_inference_port)
    )
    found.append(
        Listener(
            "TorchServe, gRPC, management",
            "grpc_management_port",
            options.grpc_management_address,
            options.grpc_management_port,
        )
    )
    return found


def ports_by_host() -> dict[str, dict[str, int]]:
    """Return, for each host, what `check_ports` takes; without ports that the system chooses."""
    found: dict[str, dict[str, int]] = {}
    for one in listeners():
        ports = found.setdefault(one.host, {})
        if one.port and not (one.scheme and one.port in ports.values()):  # APIs over HTTP may share a listener
            ports[f"{one.name} in config.properties"] = one.port
    return found


def working_folder() -> Path:
    """Return the folder in which the server runs, made where there is none: TorchServe's key file and logs lie there."""
    folder: Path = settings.DATA_DIR / "torchserve"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def python_path() -> str:
    """Return PYTHONPATH for a server that does not run in the project's folder."""
    return os.pathsep.join(filter(None, (str(BASE_DIR), os.environ.get("PYTHONPATH", ""))))
