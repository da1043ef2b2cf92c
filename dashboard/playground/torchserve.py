"""Where the bundled server answers TorchServe's clients, for the code that the playground shows."""

from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from repository.torchserve import java_properties

_DEFAULT = "http://127.0.0.1:8080"
_ALL_INTERFACES = ("http://0.0.0.0", "https://0.0.0.0")


def inference_address() -> str:
    """Return the address of its inference API as its users write it; "" where the server does not speak it, or on no port."""
    flags = list(settings.SERVER_FLAGS)
    given = _value(flags, "--ts-config") or str(getattr(settings, "TORCHSERVE_CONFIG", None) or "")
    if not given and _value(flags, "--torchserve").lower() not in ("true", "1", "on"):
        return ""
    address = (_configured(Path(given)) if given else "") or _DEFAULT
    if not address.startswith("http"):
        return ""
    for anywhere in _ALL_INTERFACES:
        address = address.replace(anywhere, f"{anywhere.partition('0')[0]}127.0.0.1")
    return address.rstrip("/")


def _value(flags: Sequence[str], name: str) -> str:
    """Return the value of a flag, "true" for one without; "" where it is not there."""
    for flag in flags:
        key, equals, value = flag.partition("=")
        if key == name:
            return value if equals else "true"
    return ""


def _configured(path: Path) -> str:
    try:
        return java_properties.parse(java_properties.decode(path.read_bytes())).get("inference_address", "").strip()
    except (OSError, java_properties.MalformedProperties):
        return ""
