"""Functions that send answers in several parts, and that find classes by their names."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..context import Context


def import_class(class_name: str, module_prefix: str | None = None) -> type[Any]:
    """Return the class of a dotted name, which is relative to `module_prefix` if that is given."""
    module_name, _, name = class_name.rpartition(".")
    full_name = (
        f"{module_prefix}.{module_name}" if module_prefix and module_name else module_name or module_prefix or ""
    )
    found: type[Any] = getattr(importlib.import_module(full_name), name)
    return found


def send_intermediate_predict_response(
    ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Context | None = None
) -> None:
    """Send one part of the answer to each request in `req_id_map`. `req_id_map` is `context.request_ids` of the whole batch, or
    the ids of some of its requests, such as a micro-batch. The result of `handle` is the last part.

    Source: pytorch/serve, docs/inference_api.md ("Streaming response").
    """
    if context is None or context.send_intermediate is None:
        raise RuntimeError(
            "this model's answers have one part: its configuration needs model_transaction_policy { decoupled: true }"
        )
    context.send_intermediate(ret, req_id_map)
