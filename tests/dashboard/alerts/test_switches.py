"""A default alert is switched off for the installation or for one model: what fires is resolved, and nobody is told."""

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.alerts import finders
from dashboard.alerts.outbox import alerts_tell
from dashboard.alerts.services import alerts_evaluate
from dashboard.alerts.switches import kind_switch
from dashboard.alerts.table import DEFAULTS, default_kind
from dashboard.models import (
    Alert,
    AlertChannel,
    AlertOff,
    AuditEntry,
    ModelState,
    ModelSync,
    Objective,
    Server,
    Version,
)
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound

pytestmark = pytest.mark.django_db


@pytest.fixture
def broken(relu: Version, server: Server) -> Version:
    ModelState.objects.update(state="UNAVAILABLE", reason="the file is damaged", failed=True)
    ModelSync.objects.create(server=server, model=relu.model, error="the file is damaged", attempts=3)
    return relu


def look() -> list[tuple[str, str]]:
    """What `watch` does; return the alerts of not_ready."""
    for _ in range(2):
        alerts_evaluate(only=["not_ready"], now=timezone.now())
        alerts_tell()
    return list(Alert.objects.values_list("subject", "state"))


@pytest.mark.parametrize("of_model", [False, True])
def test_off_resolves_what_fires_and_begins_nothing(
    broken: Version, webhook: AlertChannel, root: Actor, of_model: bool
) -> None:
    Alert.objects.create(kind="not_ready", subject="relu", model_name="relu", severity="critical", title="x",
                         state="firing", fired_at=timezone.now())  # fmt: skip
    model = broken.model if of_model else None
    look()
    kind_switch(kind=default_kind("not_ready"), actor=root, on=False, model=model)
    kind_switch(kind=default_kind("not_ready"), actor=root, on=False, model=model)
    assert look() == [("relu", "resolved")]
    (alert,) = Alert.objects.all()
    last = alert.events.last()
    assert last is not None
    assert (last.who, last.text) == ("root", f"switched off for {'relu' if of_model else 'the installation'}")
    assert sorted(alert.deliveries.values_list("what", flat=True)) == ["fired", "resolved"]
    kind_switch(kind=default_kind("not_ready"), actor=root, on=True, model=model)
    assert ("relu", "pending") in look()
    summaries = AuditEntry.objects.filter(action="alert.switch").values_list("summary", flat=True)
    assert len(summaries) == 2, "what is so already is no change"


def test_off_for_one_model_leaves_the_others(broken: Version, root: Actor) -> None:
    other = broken.model.__class__.objects.create(name="other")
    kind_switch(kind=default_kind("not_ready"), actor=root, on=False, model=other)
    assert ("relu", "pending") in look()
    other.delete()
    assert not AlertOff.objects.exists()


def test_only_what_is_about_models_is_switched_off_for_one(relu: Version, root: Actor, person: Any) -> None:
    with pytest.raises(Invalid, match="is not about models"):
        kind_switch(kind=default_kind("disk"), actor=root, on=False, model=relu.model)
    with pytest.raises(NotFound):
        default_kind("nothing")
    operator = Actor(user=person("operate", name="otto"))
    kind_switch(kind=default_kind("burn"), actor=operator, on=False, model=relu.model)
    with pytest.raises(Forbidden):
        kind_switch(kind=default_kind("burn"), actor=operator, on=False)


def test_kinds_about_models_are_those_whose_findings_name_one(relu: Version) -> None:
    of_model = {kind.name for kind in DEFAULTS if kind.of_model}
    assert of_model >= {"not_ready", "load_failed", "serves_instead", "burn", "queue_grows", "guardrail", "data_drift"}
    assert not of_model & {"crashes", "server_down", "process_silent", "memory", "disk", "ends_soon"}
    assert finders.not_ready is default_kind("not_ready").find


def test_page_and_rest_switch_it_and_tell_so(api: APIClient, relu: Version, root: Actor, as_person: Any) -> None:
    api.force_authenticate(root.user)
    answer = api.put("/api/v1/alerts/kinds/disk", {"on": False})
    assert (answer.status_code, answer.data["on"]) == (200, False)
    answer = api.put("/api/v1/models/relu/alerts/burn", {"on": False})
    assert (answer.data["on"], answer.data["off_for"]) == (True, ["relu"])
    assert api.put("/api/v1/models/relu/alerts/disk", {"on": False}).status_code == 400
    assert api.put("/api/v1/alerts/kinds/nothing", {"on": False}).status_code == 404
    listed = {row["name"]: row for row in api.get("/api/v1/alerts/kinds").data["results"]}
    assert [name for name, row in listed.items() if not row["on"]] == ["disk"]
    client = as_person(is_superuser=True)
    Objective.objects.create(model=relu.model, percent=99.9, counted=True)
    objective = client.get("/models/relu/objective").content.decode()
    assert objective.count("switched off: nobody is told") == 1
    page = client.get("/alerts/").content.decode()
    assert "by root" in page
    assert "Switch on Disk nearly full" in page
    assert "Switch Budget burns on for relu" in page
    assert client.post("/alerts/kinds/disk/switch", {"on": "on"}).status_code == 302
    assert client.post("/alerts/kinds/switch", {"kind": "burn", "model_name": "relu", "on": "on"}).status_code == 302
    assert not AlertOff.objects.exists()
    operator = as_person("operate", name="otto")
    assert operator.post("/alerts/kinds/disk/switch", {"on": "off"}).status_code == 403
    assert operator.post("/alerts/kinds/switch", {"kind": "burn", "model_name": "relu"}).status_code == 302
    assert AlertOff.objects.get().by_name == "otto"
    viewer = as_person(name="vera")
    assert viewer.post("/alerts/kinds/switch", {"kind": "burn", "model_name": "relu"}).status_code == 403
