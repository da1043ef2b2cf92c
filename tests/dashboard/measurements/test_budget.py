"""A version goes live only if its newest measurement keeps the model's budget, or if somebody gives a reason."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.measurements.services import budget_set, document_for
from dashboard.models import AuditEntry, Measurement, Model, Version
from dashboard.releases.budgets import verdict
from dashboard.releases.digest import digest_of
from dashboard.releases.selectors import current_document
from dashboard.releases.storage import managed_repository
from dashboard.rollouts.services import rollout_start
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from dashboard.versions.services import aliases_set, release_go_back, release_promote
from repository.config.document import Document
from repository.core.layout import OVERLAY_FILE
from tests.dashboard.conftest import serve, text_of
from tests.dashboard.measurements.conftest import load_row

pytestmark = pytest.mark.django_db
Keep = Callable[..., Measurement]


@pytest.fixture
def second(relu: Version, published: Callable[..., Version], actor: Actor) -> Version:
    """A second version, which is not live, of a model whose p99 must be under 20 ms at 200/s."""
    version = published()
    budget_set(model=version.model, actor=actor, budget={"p99_ms": 20.0, "per_second": 200.0})
    return Version.objects.get(pk=version.pk)


def live(model: Model) -> int:
    return current_document(Model.objects.get(pk=model.pk)).answers(model.published_numbers())


def test_a_version_that_was_not_measured_is_not_made_live(second: Version, actor: Actor) -> None:
    with pytest.raises(Conflict, match=r"version 2 was not measured, and the budget is p99 under 20 ms at 200/s"):
        release_promote(version=second, actor=actor)
    assert live(second.model) == 1


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ([load_row(4, 250, 34.0)], "its newest measurement has a p99 of 34 ms ± 340 µs at 200/s"),
        ([load_row(1, 120, 5.0)], "its newest measurement reached 120/s"),
        ([load_row(4, 250, 5.0, failures=3)], "requests failed in its newest measurement at 200/s"),
        ([], "its newest measurement reached 0/s"),
    ],
)
def test_a_version_that_breaks_the_budget_is_not_made_live(
    second: Version, actor: Actor, measured: Keep, loads: list[Any], why: str
) -> None:
    measured(second, [load_row(4, 250, 5.0)])
    measured(second, loads)
    with pytest.raises(Conflict, match=why):
        release_promote(version=second, actor=actor)


def test_a_version_that_keeps_the_budget_is_made_live(second: Version, actor: Actor, measured: Keep) -> None:
    measured(second, [load_row(1, 120, 2.0), load_row(4, 195, 19.0), load_row(8, 300, 90.0)])
    release_promote(version=second, actor=actor)
    assert live(second.model) == 2


def test_only_a_measurement_that_is_done_counts(second: Version, measured: Keep) -> None:
    measured(second, [load_row(4, 250, 5.0)], state="stopped")
    found = verdict(second, document_for(second))
    assert found is not None
    assert not found.kept


def test_only_a_measurement_of_the_configuration_that_would_serve_counts(
    second: Version, actor: Actor, measured: Keep, api: APIClient
) -> None:
    document = document_for(second)
    other = document.edited(lambda config: config.instance_group.add(count=4))
    measured(second, [load_row(4, 250, 5.0)], config=other.text, sha256=digest_of(second, other))
    with pytest.raises(
        Conflict, match=r"not measured with this configuration, but with another one \(measurement \d+\)"
    ):
        release_promote(version=second, actor=actor)
    assert "with another one" in api.get("/api/v1/models/relu/versions/2/make_live").json()["over_budget"]
    alike = Document.read(f"# The same.\n{document.text}").with_aliases({"old": 1}).live([1], [1, 2])
    measured(second, [load_row(4, 250, 5.0)], config=alike.text, sha256=digest_of(second, alike))
    measured(second, [load_row(4, 250, 90.0)], config=other.text, sha256=digest_of(second, other))
    assert api.get("/api/v1/models/relu/versions/2/make_live").json()["over_budget"] == ""
    release_promote(version=second, actor=actor)
    assert live(second.model) == 2


def test_the_choice_of_a_configuration_says_which_one_needs_a_reason(
    second: Version, actor: Actor, measured: Keep, api: APIClient, as_person: Callable[..., Client]
) -> None:
    """The fitting configuration is the one with which the version was published, the present one has been changed since."""
    measured(second, [load_row(4, 250, 5.0)])
    wider = current_document(second.model).edited(lambda config: config.instance_group.add(count=4))
    config_apply(model=second.model, document=wider, actor=actor)
    choices = api.get("/api/v1/models/relu/versions/2/make_live").json()
    assert choices["fitting"]["over_budget"] == ""
    assert "with another one" in choices["present"]["over_budget"]
    page = text_of(as_person("operate"), "/models/relu/versions/2/live")
    assert page.count("with another one") == 1
    assert re.search(r'name="override"[^>]* required', page) is None
    assert "It is not needed with a configuration that passes." in page


def test_a_measurement_does_not_count_after_the_version_s_own_file_was_changed(
    second: Version, actor: Actor, measured: Keep
) -> None:
    measured(second, [load_row(4, 250, 5.0)])
    folder = managed_repository().version_dir("relu", 2)
    (folder / OVERLAY_FILE).write_text("instance_group { count: 3 }")
    with pytest.raises(Conflict, match="with another one"):
        release_promote(version=second, actor=actor)


def test_a_reason_overrides_the_budget_and_is_recorded(second: Version, api: APIClient) -> None:
    address = "/api/v1/models/relu/versions/2/make_live"
    assert api.get(address).json()["over_budget"] == "version 2 was not measured"
    assert api.post(address, {}, format="json").status_code == 409
    assert api.post(address, {"override": "  "}, format="json").status_code == 409
    assert api.post(address, {"override": "the old one crashes"}, format="json").status_code == 200
    entry = AuditEntry.objects.get(action="budget.override")
    assert entry.summary.endswith("for version 2: the old one crashes")
    assert entry.after["why"] == "version 2 was not measured"
    assert live(second.model) == 2


def test_no_other_way_leads_around_the_budget(
    second: Version, actor: Actor, published: Callable[..., Version], measured: Keep
) -> None:
    model = second.model
    serve(model)
    with pytest.raises(Conflict, match="may not go live"):
        aliases_set(model=model, aliases={"default": 2}, actor=actor)
    now = current_document(model)
    with pytest.raises(Conflict, match="may not go live"):
        config_apply(model=model, document=now.pinned([1, 2], [1, 2]), actor=actor)
    with pytest.raises(Conflict, match="may not go live"):
        rollout_start(model=model, actor=actor, candidate=2)
    with pytest.raises(Conflict, match="may not go live before it was measured"):
        published(make_live=True, load=True)
    rollout_start(model=model, actor=actor, candidate=2, kind="shadow", plan={"shadow": {"share": 1}})


def test_going_back_is_never_refused(second: Version, actor: Actor, measured: Keep) -> None:
    serve(second.model)
    release_promote(version=second, actor=actor, override="to try")
    serve(second.model)
    release_go_back(model=second.model, actor=actor)
    assert live(second.model) == 1


def test_the_budget_is_set_and_removed_over_rest(relu: Version, api: APIClient) -> None:
    address = "/api/v1/models/relu/budget"
    assert api.get(address).json() == {"p99_ms": None, "per_second": None}
    answer = api.put(address, {"p99_ms": 20, "per_second": 200}, format="json")
    assert answer.json() == {"p99_ms": 20.0, "per_second": 200.0}
    assert api.put(address, {"p99_ms": 20, "per_second": None}, format="json").status_code == 400
    assert api.put(address, {"p99_ms": None, "per_second": None}, format="json").json()["p99_ms"] is None
    summaries = AuditEntry.objects.filter(action="budget.set").values_list("summary", flat=True)
    assert list(summaries) == ["Removed the budget of relu", "Set the budget of relu: p99 under 20 ms at 200/s"]


def test_a_budget_needs_the_right_to_operate_and_numbers(relu: Version, person: Any, actor: Actor) -> None:
    with pytest.raises(Forbidden):
        budget_set(model=relu.model, actor=Actor(user=person("upload_data")), budget={})
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(Invalid):
            budget_set(model=relu.model, actor=actor, budget={"p99_ms": wrong, "per_second": 1.0})
