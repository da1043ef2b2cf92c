"""Answers in several parts, and classes by their names."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..context import Context


def import_class(class_name: str, module_prefix: str | None = None) -> type[Any]:
    """Return a class by its dotted name, inside of a package if one is given."""
    module_name, _, name = class_name.rpartition(".")
    full_name = (
        f"{module_prefix}.{module_name}" if module_prefix and module_name else module_name or module_prefix or ""
    )
    found: type[Any] = getattr(importlib.import_module(full_name), name)
    return found


def send_intermediate_predict_response(
    ret: Sequence[Any], req_id_map: Mapping[int, str], message: str, code: int, context: Context | None = None
) -> None:
    """Send one part of the answer of each request in `req_id_map`: the batch's own `context.request_ids`, or the ids of some
    of them, as a micro-batch has them. What `handle` returns is the last part.

    Source: pytorch/serve, docs/inference_api.md ("Streaming response").
    """
    if context is None or context.send_intermediate is None:
        raise RuntimeError(
            "this model's answers have one part: its configuration needs model_transaction_policy { decoupled: true }"
        )
    context.send_intermediate(ret, req_id_map)
