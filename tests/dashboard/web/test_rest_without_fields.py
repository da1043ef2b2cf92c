"""What takes no fields over REST says so to whoever sends some, in place of passing them over."""

import re
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from dashboard.models import Version
from dashboard.web.rest.schema import whole_schema

pytestmark = pytest.mark.django_db

CHANGES = ("post", "put", "patch", "delete")


def test_every_method_without_fields_refuses_them(relu: Version, person: Callable[..., Any]) -> None:
    client = APIClient()
    client.force_authenticate(person(is_superuser=True))
    asked = 0
    for path, methods in whole_schema()["paths"].items():
        for method in CHANGES:
            described = methods.get(method)
            if described is None or "requestBody" in described:
                continue
            key = str(uuid4()) if any(one in path for one in ("uploads", "batches", "captures")) else "1"
            path = re.sub(r"(?<=/replays/)\{.+?\}", "1", path.replace("{name}", "relu"))
            address = re.sub(r"\{.+?\}", key, path)
            answer = getattr(client, method)(address, {"version": 3}, format="json")
            assert answer.status_code == 400, (method, path, answer.content)
            assert answer.json()["error"] == "This takes no fields: send it without a body.", (method, path)
            asked += 1
    assert asked > 15
    relu.refresh_from_db()
    assert relu.state == "published"
