"""Routes of the shared memory extension: status, register and unregister for system and CUDA memory.

Source: Triton, docs/protocol/extension_shared_memory.md.
"""

import base64
import binascii
from collections.abc import Sequence

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply, json_reply
from serving.frontends.rest.json_body import JsonObject, json_object
from serving.server.inference_server import InferenceServer

_SYSTEM = ("name", "key", "offset", "byte_size")
_CUDA = ("name", "device_id", "byte_size")


def system_status(server: InferenceServer, exchange: Exchange) -> Reply:
    return _described(server.shared_memory.system_status(_region(exchange)), _SYSTEM)


def system_register(server: InferenceServer, exchange: Exchange) -> Reply:
    value = json_object(exchange)
    key = value.get("key")
    if not isinstance(key, str):
        raise invalid("expected 'key' to be a string")
    offset = _number(value, "offset", 0)
    server.shared_memory.register_system(_region(exchange), key, offset, _number(value, "byte_size"))
    return Reply()


def system_unregister(server: InferenceServer, exchange: Exchange) -> Reply:
    server.shared_memory.unregister_system(_region(exchange))
    return Reply()


def cuda_status(server: InferenceServer, exchange: Exchange) -> Reply:
    return _described(server.shared_memory.cuda_status(_region(exchange)), _CUDA)


def cuda_register(server: InferenceServer, exchange: Exchange) -> Reply:
    value = json_object(exchange)
    handle = _handle(value.get("raw_handle"))
    device_id = _number(value, "device_id")
    server.shared_memory.register_cuda(_region(exchange), handle, device_id, _number(value, "byte_size"))
    return Reply()


def cuda_unregister(server: InferenceServer, exchange: Exchange) -> Reply:
    server.shared_memory.unregister_cuda(_region(exchange))
    return Reply()


def _described(regions: Sequence[object], fields: tuple[str, ...]) -> Reply:
    return json_reply([{field: getattr(region, field) for field in fields} for region in regions])


def _region(exchange: Exchange) -> str:
    return exchange.route.params.get("region", "")


def _number(value: JsonObject, name: str, default: int | None = None) -> int:
    number = value.get(name, default)
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise invalid(f"expected '{name}' to be a whole number of at least 0")
    return number


def _handle(value: object) -> bytes:
    text = value.get("b64") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise invalid("expected 'raw_handle' to be an object with a string 'b64'")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("'raw_handle' is not valid base64") from None
