"""Anything in any field of every REST route, made from the project's own OpenAPI schema: never a 500, always a sentence."""

import copy
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import transaction
from drf_spectacular.generators import SchemaGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.batches.services import batch_create
from dashboard.examples.services import example_create
from dashboard.measurements.plan import DEFAULTS
from dashboard.models import Measurement, Upload, Version
from tests.dashboard.conftest import CONFIG
from tests.dashboard.measurements.conftest import load_row
from tests.e2e.fuzzing.inputs import mutated, values

TEXTS = [
    "relu",
    "nope",
    "local",
    "",
    "1",
    "-1",
    "0",
    "9" * 20,
    "é",
    "\0",
    "..",
    "a/b",
    "%2e",
    "2026-11-21T00:00:00Z",
    CONFIG,
]
TEXTS += ["read", "write", "operate", "model.onnx", "../x", "\ud800", "a" * 300, "nan", "1e400", "[]", "{}", "true"]
texts = st.sampled_from(TEXTS) | st.text(max_size=8)
# What would end the run, or take long, and is tested elsewhere.
LEFT_OUT = {"docs_retrieve", "schema_retrieve"}


@functools.cache
def whole_schema() -> Any:
    """Return the description of REST, which is made when a test first runs: it takes longer than to collect many tests."""
    return SchemaGenerator().get_schema(request=None, public=True)


def operations() -> list[tuple[str, str, Any]]:
    return [
        (method, path, operation)
        for path, item in whole_schema()["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]


def resolved(schema: Any) -> Any:
    while "$ref" in schema:
        schema = whole_schema()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def fitting(schema: Any) -> st.SearchStrategy[Any]:
    """Values of the type that the schema names, from the corners of it."""
    schema = resolved(schema)
    for several in ("allOf", "oneOf", "anyOf"):
        if several in schema:
            return st.one_of([fitting(one) for one in schema[several]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "integer": lambda: st.sampled_from([0, 1, 2, -1, 2**31, 2**63, 2**64]) | st.integers(-3, 12),
        "number": lambda: st.floats() | st.integers(),
        "boolean": st.booleans,
        "array": lambda: st.lists(fitting(schema.get("items", {})), max_size=3),
        "object": lambda: with_properties(schema),
    }
    return kinds.get(schema.get("type", "string"), lambda: texts)()


def with_properties(schema: Any) -> st.SearchStrategy[Any]:
    parts = {name: fitting(part) for name, part in schema.get("properties", {}).items()}
    if not parts:
        return st.dictionaries(texts, values, max_size=3)
    required = {name: part for name, part in parts.items() if name in schema.get("required", ())}
    return st.fixed_dictionaries(required, optional={name: parts[name] for name in parts.keys() - required.keys()})


@pytest.fixture
def known(
    published: Callable[..., Version], inspected: Callable[..., Upload], server: Any, actor: Actor
) -> dict[str, str]:
    """What there is: values of path parameters that lead somewhere."""
    model = published(load=True, make_live=True).model
    published()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    example_create(model=model, actor=actor, name="signs", request={"inputs": [tensor]})
    upload = inspected()
    row = Measurement.objects.create(
        version=model.versions.get(number=1), state="done", plan=DEFAULTS, loads=[load_row(4, 250, 5.0)]
    )
    parts = {"uploads.id": str(upload.pk), "jobs.id": str(upload.job_id), "servers.name": "local"}
    batch = batch_create(actor=actor, model_name="relu", files=[{"path": "rows.csv", "size": 10}])
    parts |= {"models.pk": str(row.pk), "models.number": "1", "batches.id": str(batch.pk)}
    return {"name": "relu", "example": "signs", **parts}


@pytest.mark.django_db
@settings(max_examples=150)
@given(data=st.data(), chosen=st.deferred(lambda: st.sampled_from(operations())))
def test_every_operation_with_anything_in_its_path_query_and_body(
    api: APIClient, data_folder: Path, known: dict[str, str], data: st.DataObject, chosen: Any
) -> None:
    method, pattern, operation = chosen
    if operation["operationId"] in LEFT_OUT:
        return
    path, query = pattern, {}
    for parameter in operation.get("parameters", []):
        name, place = parameter["name"], parameter["in"]
        if place == "path":
            there = known.get(f"{pattern.split('/')[3]}.{name}") or known.get(name, "1")
            value = data.draw(st.just(there) | st.just(there) | texts, label=name)
            path = path.replace(f"{{{name}}}", quote(value.encode("utf-8", "surrogatepass"), safe=""))
        elif place == "query" and data.draw(st.booleans()):
            query[name] = data.draw(fitting(parameter["schema"]) | texts, label=name)
    if query:
        path += "?" + urlencode({key: str(value).encode("utf-8", "surrogatepass") for key, value in query.items()})
    with as_it_was(data_folder):
        answer = ask(api, method, path, body_of(data, operation))
    assert answer.status_code < 500 or answer.status_code == 503, (answer.status_code, answer.content[:2000])
    if answer.status_code >= 400 and method != "head":
        assert isinstance(answer.json()["error"], str), answer.content
        assert "/tmp/" not in answer.json()["error"]


def body_of(data: st.DataObject, operation: Any) -> tuple[bytes, str]:
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return data.draw(st.binary(max_size=40)), "application/octet-stream" if content else "application/json"
    good = fitting(content["application/json"]["schema"])
    shape = data.draw(st.integers(0, 5))
    if shape == 0:
        return data.draw(st.binary(max_size=40)), "application/json"
    body = data.draw(good)
    if shape < 3:
        body = data.draw(mutated(copy.deepcopy(body)))
    return json.dumps(body).encode("utf-8", "surrogatepass"), "application/json"


def ask(api: APIClient, method: str, path: str, body: tuple[bytes, str]) -> Any:
    api.raise_request_exception = False
    given_body, media_type = body
    return api.generic(method.upper(), path, given_body, content_type=media_type)


@contextmanager
def as_it_was(folder: Path) -> Iterator[None]:
    """Take back what is changed in the database and in the data folder, so that each example begins alike."""
    kept = folder.with_name(f"{folder.name}-kept")
    if not kept.exists():
        shutil.copytree(folder, kept)
    with transaction.atomic():
        point = transaction.savepoint()
        yield
        transaction.savepoint_rollback(point)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, folder, dirs_exist_ok=True)
