"""Turns headers of a request into its parameters (--http-header-forward-pattern, --grpc-header-forward-pattern).

Source: Triton's documentation of the parameters extension, its reserved names, and the behaviour of its frontends.
"""

from collections.abc import Iterable

import re2

from serving.core.errors import invalid
from serving.core.request import InferenceRequest

_RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)


def forward_headers(pattern: re2._Regexp, headers: Iterable[tuple[str, str]], request: InferenceRequest) -> None:
    """Add the headers whose names the pattern matches to the request's parameters. headers: names, as the client wrote them,
    and values. Raises INVALID_ARG for a header whose name the protocol reserves."""
    for name, value in headers:
        if pattern.search(name):
            if name in _RESERVED or name.startswith("triton_"):
                raise invalid(f"Header '{name[:100]}' is reserved for Triton usage and cannot be forwarded.")
            request.parameters = {**request.parameters, name: value}
