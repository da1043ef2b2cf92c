"""Versions that a model needs no more are archived by its own rule; what something needs stays, whatever the rule says."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.models import AuditEntry, Model, Version
from dashboard.shared.exceptions import Forbidden, Invalid
from dashboard.versions.retention import retention_run, retention_set
from dashboard.versions.services import aliases_set, release_promote
from tests.dashboard.conftest import serve

pytestmark = pytest.mark.django_db


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    """Versions 1 to 6 of the last 60, 50, ... 10 days, the first of which is live."""
    versions = [published(load=number == 0) for number in range(6)]
    for number, version in enumerate(versions):
        Version.objects.filter(pk=version.pk).update(created_at=timezone.now() - timedelta(days=60 - 10 * number))
    serve(versions[0].model)
    return versions[0].model


def left() -> list[int]:
    return sorted(Version.objects.filter(state="published").values_list("number", flat=True))


def test_without_a_rule_every_version_stays(model: Model) -> None:
    assert retention_run() == []
    assert left() == [1, 2, 3, 4, 5, 6]


def test_the_newest_and_those_of_the_last_days_stay_beside_what_is_needed(model: Model, actor: Actor) -> None:
    model = retention_set(model=model, actor=actor, count=2)
    assert retention_run() == [f"Archived version {n} of relu: the model keeps the newest 2." for n in (2, 3, 4)]
    assert left() == [1, 5, 6]
    assert retention_run() == []


def test_either_part_of_a_rule_keeps_a_version(model: Model, actor: Actor) -> None:
    retention_set(model=model, actor=actor, count=1, days=35)
    retention_run()
    assert left() == [1, 4, 5, 6]


def test_named_versions_the_way_back_and_recent_ones_stay(model: Model, actor: Actor) -> None:
    aliases_set(model=model, aliases={"candidate": 2}, actor=actor)
    serve(model)
    release_promote(version=Version.objects.get(number=3), actor=actor)
    serve(model)
    Version.objects.filter(number=4).update(created_at=timezone.now())
    retention_set(model=model, actor=actor, count=1)
    retention_run()
    assert left() == [1, 2, 3, 4, 6]


def test_a_rule_is_read_and_set_over_rest(model: Model, api: APIClient, person: Callable[..., Any]) -> None:
    path = "/api/v1/models/relu/retention"
    assert api.get(path).json() == {}
    assert api.put(path, {"count": 3, "days": 30}, format="json").json() == {"count": 3, "days": 30}
    assert AuditEntry.objects.first().summary == "relu: keeps the newest 3 and those of the last 30 days"
    assert api.put(path, {"days": 0}, format="json").status_code == 400
    assert api.put(path, {}, format="json").json() == {}
    with pytest.raises(Forbidden):
        retention_set(model=model, actor=Actor(user=person("upload_data")), count=1)
    with pytest.raises(Invalid, match="from 1 to"):
        retention_set(model=model, actor=Actor(system=True), count=0)
