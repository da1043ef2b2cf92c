"""Answers with lines of JSON, each sent when it is known."""

import json
from collections.abc import AsyncIterator

from django.db import close_old_connections
from django.http import StreamingHttpResponse
from rest_framework.renderers import JSONRenderer


class LinesRenderer(JSONRenderer):
    """Renders an error before the first line, for a client that accepts only lines."""

    media_type = "application/x-ndjson"


def line(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def lines_response(lines: AsyncIterator[bytes]) -> StreamingHttpResponse:
    response = StreamingHttpResponse(lines, content_type=LinesRenderer.media_type)
    close_old_connections()  # a long stream must not hold a session of the database
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"  # a reverse proxy, such as nginx, must not buffer the lines
    return response
