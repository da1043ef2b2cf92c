"""What is made of a body."""

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.request import Request

from dashboard.shared.exceptions import Invalid, TooLarge


class BoundedJSONParser(JSONParser):
    """JSON as deep as the interpreter's own parser goes; deeper is the client's mistake too."""

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("the JSON is nested too deeply") from None


class RawParser(BaseParser):
    """Leaves the body alone, whatever its type; the view reads it with `read_body`."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None) -> Any:
        return stream


def read_body(request: Request, limit: int) -> bytes:
    """The whole body; TooLarge, before it is read where its length was said, when it is over the limit in bytes."""
    length = request.META.get("CONTENT_LENGTH") or ""
    if length and not length.isdigit():
        raise Invalid("expected a whole number as Content-Length")
    if length and int(length) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes, but {length} were announced")
    body: bytes = request._request.read(limit + 1)
    if len(body) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes, but more came")
    return body
