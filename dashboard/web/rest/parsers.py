"""The parsers of request bodies."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.request import Request

from dashboard.shared.exceptions import Invalid, TooLarge


class BoundedJSONParser(JSONParser):
    """Parses JSON as deep as the interpreter's own parser goes; what is nested deeper is answered with 400."""

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, object] | None = None
    ) -> dict[str, Any]:  # by the base class, whatever the JSON is
        try:
            return super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("the JSON is nested too deeply") from None


class RawParser(BaseParser):
    """Leaves the body alone, whatever its type; the view reads it with `read_body`."""

    media_type = "*/*"

    def parse(  # type: ignore[override]  # the stream itself, which the view reads
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, object] | None = None
    ) -> IO[bytes]:
        return stream


def read_body(request: Request, limit: int) -> bytes:
    """Return the whole body. TooLarge: it has more than `limit` bytes; it is not read where its length was announced.

    Invalid: Content-Length is no number.
    """
    length = request.META.get("CONTENT_LENGTH") or ""
    if length and not length.isdigit():
        raise Invalid("expected a whole number as Content-Length")
    if length and int(length) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes, but {length} were announced")
    body: bytes = request._request.read(limit + 1)
    if len(body) > limit:
        raise TooLarge(f"expected a body of at most {limit} bytes, but more came")
    return body
