"""An alert fires after it held, resolves by itself, is told once, and can be acknowledged and muted."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.alerts import services
from dashboard.alerts.outbox import alerts_tell
from dashboard.alerts.services import alert_acknowledge, alert_mute, alert_unmute, alerts_evaluate, alerts_forget
from dashboard.models import Alert, AlertChannel, AlertDelivery, AuditEntry
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid
from tests.dashboard.alerts.conftest import Condition

pytestmark = pytest.mark.django_db


def states() -> list[str]:
    return list(Alert.objects.order_by("pk").values_list("state", flat=True))


def told() -> list[str]:
    return list(AlertDelivery.objects.order_by("pk").values_list("what", flat=True))


def test_it_fires_when_it_has_held_and_resolves_when_it_has_been_away(
    condition: Condition, webhook: AlertChannel
) -> None:
    condition.subjects = {"a"}
    condition.look()
    assert (states(), told()) == (["pending"], [])
    condition.look(10)
    assert (states(), told()) == (["firing"], ["fired"])
    condition.look(5)
    condition.subjects = set()
    condition.look(29)
    assert states() == ["firing"], "it may flap"
    condition.look(2)
    assert (states(), told()) == (["resolved"], ["fired", "resolved"])
    condition.look(60)
    assert len(told()) == 2


def test_what_does_not_suffice_to_begin_an_alert_keeps_one_open(condition: Condition) -> None:
    condition.subjects, condition.opens = {"a"}, False
    condition.look()
    assert states() == []
    condition.opens = True
    condition.look()
    condition.look(10)
    condition.opens = False
    condition.look(60)
    condition.look(60)
    assert states() == ["firing"]


def test_a_short_condition_leaves_no_alert(condition: Condition) -> None:
    condition.subjects = {"a"}
    condition.look()
    condition.subjects = set()
    condition.look(5)
    assert states() == ["pending"]
    condition.look(5)
    assert states() == []


def test_a_condition_that_comes_and_goes_is_told(condition: Condition, webhook: AlertChannel) -> None:
    """As that of a model whose process ends again and again, and is ready in between."""
    for subjects in ({"a"}, set(), {"a"}, set(), {"a"}):
        condition.subjects = subjects
        condition.look(4)
    assert (states(), told()) == (["firing"], ["fired"])


def test_two_evaluators_tell_once(condition: Condition, webhook: AlertChannel) -> None:
    condition.subjects = {"a"}
    for _ in range(3):
        condition.look(6)
        condition.look(0)
    stale = Alert.objects.get()
    # A second process that read the row before it fired.
    stale.state, kind = "pending", condition.kind()
    services._advance(kind, stale, next(iter(kind.find(None))), condition.now)  # type: ignore[arg-type]
    assert alerts_tell(now=condition.now) == 0
    assert told() == ["fired"]
    assert stale.events.filter(what="fired").count() == 1


def test_no_second_open_alert_of_a_subject_can_be_made(condition: Condition) -> None:
    condition.subjects = {"a"}
    condition.look()
    with pytest.raises(IntegrityError), transaction.atomic():
        Alert.objects.create(kind="planted", subject="a", severity="warning", title="x")


def test_a_finder_with_a_fault_changes_nothing(condition: Condition) -> None:
    condition.subjects = {"a"}
    condition.look()
    condition.look(10)
    condition.broken = True
    assert alerts_evaluate(now=condition.now + timedelta(hours=1)) == "not evaluated: planted"
    assert states() == ["firing"]


def test_the_same_fault_is_not_told_by_a_lesser_alert(
    condition: Condition, webhook: AlertChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    lesser = condition.kind(name="lesser", hold_s=0.0, unless={"planted": 100.0})
    monkeypatch.setattr(services, "kinds", lambda: [condition.kind(hold_s=0.0), lesser])
    condition.subjects = {"a"}
    condition.look()
    condition.look(10)
    assert list(Alert.objects.values_list("kind", flat=True)) == ["planted"]
    Alert.objects.update(state="resolved", resolved_at=condition.now)
    monkeypatch.setattr(services, "kinds", lambda: [lesser])
    condition.look(90)
    assert Alert.objects.count() == 1
    condition.look(20)
    assert Alert.objects.filter(kind="lesser", state="firing").exists(), "it goes on, so it is told"


def test_a_muted_alert_is_told_when_the_mute_ends_if_it_still_fires(
    condition: Condition, webhook: AlertChannel, actor: Actor
) -> None:
    condition.subjects = {"a", "b"}
    condition.look()
    for alert in Alert.objects.all():
        alert_mute(alert=alert, actor=actor, minutes=60)
    condition.now = alert.events.get().at
    condition.look(30)
    assert (states(), told()) == (["firing", "firing"], [])
    condition.subjects = {"a"}
    condition.look(1800)
    assert told() == [], "what is over before the mute ends is told to nobody"
    condition.look(1801)
    assert told() == ["fired"]
    alert_mute(alert=Alert.objects.get(subject="a"), actor=actor, minutes=60)
    alert_unmute(alert=Alert.objects.get(subject="a"), actor=actor)
    with pytest.raises(Conflict, match="not muted"):
        alert_unmute(alert=Alert.objects.get(subject="a"), actor=actor)


def test_only_the_first_acknowledgement_counts_and_who_is_in_the_history(
    condition: Condition, actor: Actor, person: Any
) -> None:
    condition.subjects = {"a"}
    condition.look()
    with pytest.raises(Conflict, match="does not fire"):
        alert_acknowledge(alert=Alert.objects.get(), actor=actor)
    condition.look(10)
    alert_acknowledge(alert=Alert.objects.get(), actor=actor)
    with pytest.raises(Conflict, match="olga has acknowledged it"):
        alert_acknowledge(alert=Alert.objects.get(), actor=actor)
    with pytest.raises(Forbidden):
        alert_acknowledge(alert=Alert.objects.get(), actor=Actor(user=person()))
    with pytest.raises(Invalid):
        alert_mute(alert=Alert.objects.get(), actor=actor, minutes=0)
    assert list(Alert.objects.get().events.values_list("what", "who")) == [
        ("fired", "system"),
        ("acknowledged", "olga"),
    ]
    assert AuditEntry.objects.filter(action="alert.acknowledge", actor_name="olga").exists()


def test_old_alerts_are_forgotten(condition: Condition, settings: Any) -> None:
    condition.subjects = {"a"}
    condition.look()
    condition.look(10)
    condition.subjects = set()
    condition.look(60)
    Alert.objects.update(resolved_at=condition.now - timedelta(days=999))
    assert alerts_forget() == 1


def test_the_routes_and_pages_of_an_alert(condition: Condition, api: APIClient, as_person: Any) -> None:
    condition.subjects = {"a"}
    condition.look()
    condition.look(10)
    pk = Alert.objects.get().pk
    row = api.get("/api/v1/alerts?state=firing").data["results"][0]
    assert (row["title"], row["acknowledged_at"], row["muted_until"]) == ("a is planted", None, None)
    client = as_person("operate")
    assert "(1 failed)" not in client.get("/").content.decode()  # the browser writes it into the title
    assert 'data-failing="1"' in client.get("/health", headers={"HX-Request": "true"}).content.decode()
    assert "a is planted" in client.get("/?part=now", headers={"HX-Request": "true"}).content.decode()
    assert api.post(f"/api/v1/alerts/{pk}/mute", {"minutes": 5}).data["muted_until"]
    assert api.delete(f"/api/v1/alerts/{pk}/mute").data["muted_until"] is None
    client.post(f"/alerts/{pk}/mute", {"minutes": "60"})
    client.post(f"/alerts/{pk}/mute", {"minutes": "0"})
    client.post(f"/alerts/{pk}/mute", {"minutes": "x"})
    assert api.post(f"/api/v1/alerts/{pk}/acknowledge").data["acknowledged_by"] == "olga"
    assert 'data-failing="0"' in client.get("/health", headers={"HX-Request": "true"}).content.decode()
    history = [(event["what"], event["who"]) for event in api.get(f"/api/v1/alerts/{pk}").data["history"]]
    assert ("acknowledged", "olga") in history
    page = client.get(f"/alerts/{pk}/").content.decode()
    assert "acknowledged by olga" in page
    assert client.get("/alerts/999999/").status_code == 404
