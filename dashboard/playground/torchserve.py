"""Where the bundled server answers TorchServe's clients, for the code that the playground shows."""

import os
from pathlib import Path

from django.conf import settings

from dashboard.servers.bundled_flags import flag, is_on
from repository.torchserve import properties
from repository.torchserve.options import TorchServeOptions

_ANYWHERE = ("0.0.0.0", "::", "[::]")  # a listener's address that no client asks


def inference_address() -> str:
    """Return the address of its inference API; "" where the server does not speak it, or on no port."""
    config = settings.TORCHSERVE_CONFIG or flag("--ts-config")
    if not config and not is_on("--torchserve"):
        return ""
    try:
        options = _options(Path(config)) if config else TorchServeOptions()
    except (OSError, properties.InvalidProperties):  # then the server does not start either
        return ""
    address = options.inference_address
    if address.socket is not None:
        return ""
    host = "127.0.0.1" if address.host in _ANYWHERE else address.host
    return f"{'https' if address.tls else 'http'}://{host}:{address.port}"


def _options(path: Path) -> TorchServeOptions:
    options, _ = properties.torchserve_options(properties.read(path, os.environ), os.environ)
    return options
