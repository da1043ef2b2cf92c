"""A request for a model or an example that another person deletes at the same time is a 404, no 500."""

from collections.abc import Callable
from typing import Any

import pytest

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_delete, model_describe
from dashboard.configuration.services import config_apply
from dashboard.examples.services import example_change, example_create, example_delete
from dashboard.examples.traffic import traffic_sample
from dashboard.models import AuditEntry, Model, Version
from dashboard.shared.exceptions import NotFound
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.retention import retention_set
from dashboard.versions.services import aliases_set, release_go_back, release_promote, version_annotate
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG

pytestmark = pytest.mark.django_db
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
DONE: dict[str, Callable[[Model, Version, Actor], Any]] = {
    "describe": lambda model, version, actor: model_describe(model=model, actor=actor, description="x"),
    "configure": lambda model, version, actor: config_apply(model=model, document=Document.read(CONFIG), actor=actor),
    "name": lambda model, version, actor: aliases_set(model=model, aliases={"a": 1}, actor=actor),
    "go back": lambda model, version, actor: release_go_back(model=model, actor=actor),
    "make live": lambda model, version, actor: release_promote(version=version, actor=actor),
    "note": lambda model, version, actor: version_annotate(version=version, actor=actor, note="x"),
    "archive": lambda model, version, actor: version_archive(version=version, actor=actor),
    "restore": lambda model, version, actor: version_restore(version=version, actor=actor),
    "keep": lambda model, version, actor: retention_set(model=model, actor=actor, count=1),
    "example": lambda model, version, actor: example_create(model=model, actor=actor, name="e", request=REQUEST),
    "sample": lambda model, version, actor: traffic_sample(model=model, actor=actor, count=1, seconds=1, consent=True),
    "delete": lambda model, version, actor: model_delete(model=model, actor=actor, confirm_name="relu"),
}


@pytest.mark.parametrize("done", DONE)
def test_what_is_done_to_a_model_that_was_deleted_meanwhile(
    done: str, published: Callable[..., Version], actor: Actor
) -> None:
    version = published()
    model = version.model
    model_delete(model=Model.objects.get(), actor=actor, confirm_name="relu")
    reported = AuditEntry.objects.count()
    with pytest.raises(NotFound, match="deleted meanwhile"):
        DONE[done](model, version, actor)
    assert AuditEntry.objects.count() == reported


def test_an_example_that_was_deleted_meanwhile(published: Callable[..., Version], actor: Actor) -> None:
    model = published().model
    first = example_create(model=model, actor=actor, name="e", request=REQUEST)
    second = model.examples.get()
    example_delete(example=first, actor=actor)
    with pytest.raises(NotFound, match="deleted meanwhile"):
        example_change(example=second, actor=actor, name="f")
    with pytest.raises(NotFound, match="deleted meanwhile"):
        example_delete(example=second, actor=actor)
