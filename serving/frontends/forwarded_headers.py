"""Headers of a request that its model sees as parameters (--http-header-forward-pattern, --grpc-header-forward-pattern)."""

import re
from collections.abc import Mapping

from serving.request import InferenceRequest


def header_pattern(text: str) -> re.Pattern[str] | None:
    """Names are lower case in both protocols here, so the pattern matches in either case."""
    return re.compile(text, re.IGNORECASE) if text else None


def forward_headers(pattern: re.Pattern[str], headers: Mapping[str, str], request: InferenceRequest) -> None:
    for name, value in headers.items():
        if pattern.search(name):
            request.parameters[name] = value
