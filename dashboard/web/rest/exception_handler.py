"""Answers every error of the REST API as {"error": sentence}, with more fields for programs (see _body, _rest_body)."""

from dataclasses import asdict

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import exception_handler as rest_handler
from rest_framework.views import set_rollback

from dashboard.shared.exceptions import (
    DashboardError,
    Invalid,
    NamesMoved,
    Outdated,
    TooMany,
    WrongOffset,
    status_of,
)

RETRY_AFTER_S = "2"  # roughly the time that a person's own requests under way take


def exception_handler(error: Exception, context: dict[str, object]) -> Response | None:
    """Return the answer to an error, or None for a fault of the dashboard itself, which gets status 500."""
    if isinstance(error, DashboardError):
        set_rollback()
        headers = {"Retry-After": RETRY_AFTER_S} if isinstance(error, TooMany) else None
        return Response(_body(error), status=status_of(error), headers=headers)
    if isinstance(error, RecursionError):  # the nesting is too deep here, although the parser accepted it
        set_rollback()
        return Response({"error": "the JSON is nested too deeply"}, status=400)
    response = rest_handler(error, context)
    if response is not None:
        response.data = _rest_body(error, response.data)
    return response


def _body(error: DashboardError) -> dict[str, object]:
    body: dict[str, object] = {"error": error.message}
    if isinstance(error, WrongOffset):
        body["received"] = error.expected
    if isinstance(error, Outdated):
        names = ("base_text", "current_text", "current_release", "current_by")
        body |= {name: getattr(error, name) for name in names}
    if isinstance(error, NamesMoved):
        body |= {"merged": error.merged, "current_release": error.current_release}
    if isinstance(error, Invalid) and error.problems:
        body["problems"] = [asdict(problem) for problem in error.problems]
    return body


def _rest_body(error: Exception, data: object) -> dict[str, object]:
    if isinstance(error, exceptions.ValidationError):
        encodable = _encodable(data)
        return {"error": _sentence(encodable), "fields": encodable if isinstance(encodable, dict) else {}}
    if isinstance(error, Http404):
        return {"error": "there is nothing at this address"}
    if isinstance(error, PermissionDenied):
        return {"error": "this needs a permission that the account or token does not have"}
    if isinstance(error, exceptions.UnsupportedMediaType):
        return {"error": "expected JSON: send it with the header Content-Type: application/json"}
    detail = data.get("detail") if isinstance(data, dict) else data
    return {"error": str(detail)}


def _encodable(data: object) -> object:
    """Return REST framework's errors as text that UTF-8 can encode: a client may name a field with half of a surrogate pair."""
    if isinstance(data, dict):
        return {str(name).encode(errors="replace").decode(): _encodable(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_encodable(value) for value in data]
    return str(data).encode(errors="replace").decode()


_SHOWN = 80  # the most characters of an unknown field's name
_LONGEST = 500  # the most characters of a sentence


def _sentence(data: object, path: str = "") -> str:
    """Return the first message in REST framework's errors, with the path of its field."""
    if isinstance(data, dict):
        name, value = next(iter(data.items()), ("", "the request is not valid"))
        step = "" if name == "non_field_errors" else str(name)[:_SHOWN]
        return _sentence(value, f"{path}.{step}".strip(".") if step else path)
    if isinstance(data, list):
        item = next((row for row in data if row), "the request is not valid")
        return _sentence(item, path)
    said = f"{path}: {data}" if path else str(data)
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
