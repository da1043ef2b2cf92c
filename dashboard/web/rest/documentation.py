"""The documentation of the REST API: its OpenAPI schema, and the page of the dashboard that shows it."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from drf_spectacular.views import SpectacularAPIView
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from dashboard.access.authorisation import Right
from dashboard.web.rest.endpoint import at
from dashboard.web.rest.schema import whole_schema

_DEEPEST = 4  # levels of nested objects whose fields are listed
_METHODS = ("get", "post", "put", "patch", "delete")
_EXAMPLES = {"integer": 1, "number": 1.0, "boolean": True, "string": "text", "object": {}}


class Field(NamedTuple):
    """A parameter of an operation, or a field of a body by its path, such as `problems[].line`. place: path, query or body."""

    name: str
    kind: str
    place: str = "body"
    required: bool = False
    description: str = ""


class Answer(NamedTuple):
    status: str
    fields: list[Field]


@dataclass(frozen=True, slots=True)
class Operation:
    name: str  # unique
    method: str
    path: str
    summary: str
    description: str
    right: str  # Right.value of the right that the caller needs
    takes: list[Field] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    example: Any = None  # a body


@at("schema", "api_schema")
class Schema(SpectacularAPIView):
    """The OpenAPI schema."""

    rights = {"GET": Right.VIEW}


class _Html(BaseRenderer):
    """Accepts a browser's Accept header; a template renders the page."""

    media_type = "text/html"
    format = "html"

    def render(self, data: Any, *_: Any, **__: Any) -> str:
        return json.dumps(data)


@at("docs", "api_docs")
class Documentation(APIView):
    """The page. It redirects to the sign-in, like every page. A wrong token gets status 401, as at every endpoint."""

    rights = {"GET": Right.VIEW}
    renderer_classes = [_Html]
    schema = None

    def get(self, request: Request) -> HttpResponse:
        address = request.build_absolute_uri("/").rstrip("/")
        groups = [(name, [(one, _command(one, address)) for one in found]) for name, found in operation_groups()]
        return render(request._request, "api/documentation.html", {"groups": groups})

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        answer: HttpResponseBase = super().dispatch(request, *args, **kwargs)
        signed_out = answer.status_code == 401 and "Authorization" not in request.headers
        return redirect_to_login(request.get_full_path()) if signed_out else answer


def _command(operation: Operation, address: str) -> str:
    """Return the operation as a command line of curl."""
    method = "" if operation.method == "GET" else f"-X {operation.method} "
    parts = [f'curl {method}-H "Authorization: Bearer $TOKEN"']
    if operation.example is not None:
        parts += ['-H "Content-Type: application/json"', f"-d '{json.dumps(operation.example)}'"]
    return " \\\n  ".join([*parts, shlex.quote(f"{address}{operation.path}")])


@cache
def operation_groups() -> list[tuple[str, list[Operation]]]:
    """Return every operation of the API, grouped by the first step of its path."""
    schemas: Mapping[str, Any] = whole_schema()["components"]["schemas"]
    groups: dict[str, list[Operation]] = {}
    for path, item in whole_schema()["paths"].items():
        for method in _METHODS:
            if method in item:
                operation = item[method]
                groups.setdefault(operation["tags"][0], []).append(_operation(path, method, operation, schemas))
    return list(groups.items())


def _operation(path: str, method: str, said: Mapping[str, Any], schemas: Mapping[str, Any]) -> Operation:
    takes = [
        Field(
            one["name"],
            _kind(one["schema"], schemas),
            one["in"],
            one.get("required", False),
            one.get("description", ""),
        )
        for one in said.get("parameters", [])
    ]
    body = _content(said.get("requestBody", {}))
    return Operation(
        name=said["operationId"],
        method=method.upper(),
        path=path,
        summary=said.get("summary", ""),
        description=said.get("description", ""),
        right=said.get("x-right", ""),
        takes=[*takes, *_fields(body, schemas)],
        answers=[
            Answer(status, list(_fields(_content(answer), schemas))) for status, answer in said["responses"].items()
        ],
        example=_example(body, schemas) if body else None,
    )


def _content(said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a body in JSON; {} if there is none."""
    found: Mapping[str, Any] = said.get("content", {}).get("application/json", {}).get("schema", {})
    return found


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    for inner in schema.get("allOf", ()) if len(schema.get("allOf", ())) == 1 else ():
        return _resolved(inner, schemas)
    reference = schema.get("$ref", "")
    return _resolved(schemas[reference.rsplit("/", 1)[-1]], schemas) if reference else schema


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[Field]:
    """Yield the fields of an object, and of the objects in it."""
    found = _resolved(schema, schemas)
    if found.get("type") == "array":
        yield from _fields(found["items"], schemas, f"{prefix}[]", depth)
        return
    required = found.get("required", [])
    for name, inner in found.get("properties", {}).items():
        path = f"{prefix}.{name}".lstrip(".")
        resolved = _resolved(inner, schemas)
        said = inner.get("description") or resolved.get("description", "")
        yield Field(path, _kind(inner, schemas), "body", name in required, str(said).split("\n", 1)[0])
        if depth < _DEEPEST:
            yield from _fields(inner, schemas, path, depth + 1)


def _kind(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """Return the type of a value in a few words: "integer or null", "list of string"."""
    found = _resolved(schema, schemas)
    choices = found.get("oneOf") or found.get("anyOf")
    if choices:
        return " or ".join(dict.fromkeys(_kind(choice, schemas) for choice in choices))
    if "enum" in found:
        return " | ".join(json.dumps(value) for value in found["enum"])
    if found.get("type") == "array":
        return f"list of {_kind(found['items'], schemas)}"
    kind = found.get("format") if found.get("format") in ("date-time", "uuid") else found.get("type", "any JSON")
    return f"{kind} or null" if found.get("nullable") or schema.get("nullable") else str(kind)


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> Any:
    """Return an example of a schema; an object has its required fields, or all fields if none is required."""
    found = _resolved(schema, schemas)
    if "enum" in found:
        return found["enum"][0]
    if found.get("type") == "array":
        return [_example(found["items"], schemas, depth + 1)] if depth < _DEEPEST else []
    properties = found.get("properties")
    if not properties or depth >= _DEEPEST:
        return found.get("default", _EXAMPLES.get(found.get("type", ""), {}))
    wanted = found.get("required") or list(properties)
    return {name: _example(properties[name], schemas, depth + 1) for name in wanted if name in properties}
