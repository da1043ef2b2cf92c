"""The parsers of request bodies."""

import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.request import Request

from dashboard.shared.exceptions import Invalid, TooLarge

_LONGEST_NUMBER = re.compile(rb"[0-9]{4000}")
_LARGE_NUMBER = re.compile(rb"[eE]\+?[0-9]{3}|[0-9]{300}")  # a number that may be too large for a float


class BoundedJSONParser(JSONParser):
    """Parses JSON that the database, files and answers can all hold. Other JSON is refused with status 400.

    Python's parser limits the nesting. Half of a surrogate pair is refused because UTF-8 cannot encode it.
    """

    def parse(
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, object] | None = None
    ) -> Any:
        content = stream.read()
        try:
            parse_float = _finite if _LARGE_NUMBER.search(content) else None
            value = json.loads(content.decode(), parse_constant=_refuse_constant, parse_float=parse_float)
            if b"\\ud" in content or b"\\uD" in content:
                json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            raise ParseError("the JSON is nested too deeply") from None
        except UnicodeDecodeError:
            raise ParseError("the JSON is not UTF-8") from None
        except UnicodeEncodeError:
            raise ParseError("a text in the JSON holds half of a surrogate pair (\\ud800 to \\udfff)") from None
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise ParseError(f"the body is not JSON: {error.msg[:1].lower()}{error.msg[1:]}: {place}") from None
        except ValueError as error:
            message = "a number in it has too many digits" if _LONGEST_NUMBER.search(content) else str(error)
            raise ParseError(f"the body is not JSON: {message}") from None
        return value


def _finite(text: str) -> float:
    if math.isinf(value := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


class RawParser(BaseParser):
    """Leaves a body of any type unread; the view reads it with `read_body`."""

    media_type = "*/*"

    def parse(  # type: ignore[override]  # the stream itself, which the view reads
        self, stream: IO[bytes], media_type: str | None = None, parser_context: Mapping[str, object] | None = None
    ) -> IO[bytes]:
        return stream


def read_body(request: Request, limit: int) -> bytes:
    """Return the whole body. A body whose Content-Length is over the limit is not read.

    Raises TooLarge if the body has more than `limit` bytes. Raises Invalid if Content-Length is no number.
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
