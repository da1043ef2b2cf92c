"""A message is sent once, signed, tried again, given up in the open, held in quiet hours, and never to an inner address."""

import hashlib
import hmac
import json
import socket
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.alerts import outbox, posting
from dashboard.alerts.channels import channel_create, channel_delete, channel_test, channel_update
from dashboard.alerts.outbox import BACKOFF_S, MOST_ATTEMPTS, deliveries_send, delivery_retry, quiet_end
from dashboard.alerts.posting import check_address, post
from dashboard.models import Alert, AlertChannel, AlertDelivery
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, Unavailable
from tests.dashboard.alerts.conftest import Condition, Receiver

pytestmark = pytest.mark.django_db


def fire(condition: Condition) -> Alert:
    condition.subjects = {"a"}
    condition.look()
    condition.look(10)
    return Alert.objects.get(state="firing")


def send(condition: Condition, after: float = 0.0) -> int:
    condition.now += timedelta(seconds=after)
    return deliveries_send(now=lambda: condition.now)


def only() -> AlertDelivery:
    return AlertDelivery.objects.get()


def test_a_webhook_is_signed_over_its_time_and_body(
    condition: Condition, webhook: AlertChannel, receiver: Receiver
) -> None:
    fire(condition)
    assert send(condition) == 1
    headers, body = receiver.got[0]
    expected = hmac.new(webhook.secret.encode(), headers["Slipway-Timestamp"].encode() + b"." + body, hashlib.sha256)
    assert headers["Slipway-Signature"] == "v1=" + expected.hexdigest()
    assert headers["Slipway-Delivery"] == json.loads(body)["id"] == str(only().uid)
    assert json.loads(body)["title"] == "a is planted"
    assert send(condition) == 0, "nothing is told twice"
    condition.subjects = set()
    condition.look(60)
    send(condition)
    assert [one["event"] for one in receiver.bodies] == ["fired", "resolved"]


def test_a_failure_is_tried_again_later_and_given_up_in_the_open(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, root: Actor
) -> None:
    fire(condition)
    receiver.statuses = [500] * MOST_ATTEMPTS
    for pause in (0, *BACKOFF_S):
        assert send(condition, pause - 1 if pause else 0) == 0
        send(condition, 1 if pause else 0)
    assert (only().state, len(receiver.got)) == ("dead", MOST_ATTEMPTS)
    assert only().error == "127.0.0.1 answered with status 500, where 200 was expected"
    assert len({headers["Slipway-Delivery"] for headers, _ in receiver.got}) == 1
    delivery_retry(delivery=only(), actor=root)
    with pytest.raises(Conflict, match="was not given up"):
        delivery_retry(delivery=only(), actor=root)
    condition.now = timezone.now()
    assert send(condition, 1) == 1
    assert only().state == "sent"


def test_a_receiver_that_hangs_is_given_up_each_time_and_in_the_end(
    condition: Condition, webhook: AlertChannel, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "POST_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook.address = f"http://127.0.0.1:{silent.getsockname()[1]}/hook"
        webhook.save()
        settings.ALERT_ADDRESSES = [webhook.address]
        fire(condition)
        for pause in (0, *BACKOFF_S):
            send(condition, pause)
            assert only().error == "127.0.0.1 does not answer in time"
    assert (only().state, only().attempts) == ("dead", MOST_ATTEMPTS)


def test_a_given_up_begin_that_is_sent_again_is_followed_by_the_end(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, root: Actor
) -> None:
    fire(condition)
    receiver.statuses = [500] * MOST_ATTEMPTS
    for pause in (0, *BACKOFF_S):
        send(condition, pause)
    condition.subjects = set()
    condition.look(60)
    send(condition)
    assert [one.state for one in AlertDelivery.objects.order_by("pk")] == ["dead", "dropped"]
    receiver.got.clear()
    delivery_retry(delivery=AlertDelivery.objects.get(what="fired"), actor=root)
    condition.now = timezone.now()
    for _ in range(2):
        send(condition, 2)
    assert [one["event"] for one in receiver.bodies] == ["fired", "resolved"]


def test_a_message_whose_sender_died_is_sent_by_another(
    condition: Condition, webhook: AlertChannel, receiver: Receiver
) -> None:
    fire(condition)
    AlertDelivery.objects.update(state="sending", attempts=1, claimed_at=condition.now)
    assert send(condition, outbox.CLAIM_S - 1) == 0
    assert send(condition, 2) == 1
    assert only().attempts == 2


def test_a_sender_that_was_taken_for_dead_records_nothing(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    fire(condition)

    def slow(*_: object) -> None:
        AlertDelivery.objects.update(attempts=2)  # another one has claimed it meanwhile
        raise Unavailable("too late")

    monkeypatch.setattr(outbox, "send", slow)
    send(condition)
    assert (only().state, only().error) == ("sending", "")


def test_quiet_hours_hold_back_warnings_and_drop_what_is_over_by_then(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, root: Actor
) -> None:
    channel_update(channel=webhook, actor=root, quiet_from=time(11, 0), quiet_until=time(13, 0))
    fire(condition)
    assert (only().held, only().due_at) == (True, datetime(2026, 6, 1, 13, 0, tzinfo=UTC))
    assert send(condition, 600) == 0
    condition.subjects = set()
    condition.look(60)
    send(condition, 3600)
    assert receiver.got == []
    assert {one.state for one in AlertDelivery.objects.all()} == {"dropped"}


def test_critical_alerts_come_in_quiet_hours(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    AlertChannel.objects.update(quiet_from=time(0, 0), quiet_until=time(23, 59))
    monkeypatch.setattr("dashboard.alerts.services.kinds", lambda: [condition.kind(severity="critical")])
    fire(condition)
    assert send(condition) == 1


@pytest.mark.parametrize(
    ("start", "end", "zone", "now", "until"),
    [
        (22, 6, "UTC", "2026-06-01T23:30", "2026-06-02T06:00"),
        (22, 6, "UTC", "2026-06-02T05:59", "2026-06-02T06:00"),
        (22, 6, "UTC", "2026-06-02T06:00", None),
        (22, 6, "Europe/Berlin", "2026-06-01T20:30", "2026-06-02T04:00"),
        (22, 6, "Europe/Berlin", "2026-10-24T21:30", "2026-10-25T05:00"),
        (22, 3, "Europe/Berlin", "2026-10-25T01:30", "2026-10-25T02:00"),
        (22, 6, "Europe/Berlin", "2026-03-28T22:30", "2026-03-29T04:00"),
        (22, 2, "Europe/Berlin", "2026-03-29T00:59", "2026-03-29T01:00"),
        (9, 17, "UTC", "2026-06-01T08:59", None),
        (9, 9, "UTC", "2026-06-01T09:00", None),
    ],
)
def test_the_end_of_quiet_hours(start: int, end: int, zone: str, now: str, until: str | None) -> None:
    channel = AlertChannel(quiet_from=time(start), quiet_until=time(end), time_zone=zone)
    found = quiet_end(channel, datetime.fromisoformat(f"{now}+00:00"))
    assert found == (until and datetime.fromisoformat(f"{until}+00:00"))


def test_quiet_hours_that_end_in_the_hour_that_comes_twice_end_at_its_second_turn() -> None:
    """At 2:10 in summer time the end is 2:30 in summer time; at 2:10 in winter time it is 2:30 in winter time."""
    channel = AlertChannel(quiet_from=time(22), quiet_until=time(2, 30), time_zone="Europe/Berlin")
    for hour in (0, 1):
        now = datetime(2026, 10, 25, hour, 10, tzinfo=UTC)
        end = quiet_end(channel, now)
        assert end is not None
        assert end == now + timedelta(minutes=20)


def test_an_e_mail_says_what_it_means_and_what_to_do(condition: Condition, root: Actor, settings: Any) -> None:
    settings.PUBLIC_URL = "https://slipway.example"
    channel_create(actor=root, name="mail", kind="email", address="oncall@example.org")
    alert = fire(condition)
    send(condition)
    message = mail.outbox[0]
    assert message.subject == "[Firing] a is planted"
    assert f"https://slipway.example/alerts/{alert.pk}/" in message.body
    assert str(only().uid) in message.extra_headers["Message-ID"]


def test_a_name_of_two_lines_is_one_line_of_a_subject(condition: Condition, root: Actor) -> None:
    channel_create(actor=root, name="mail", kind="email", address="oncall@example.org")
    condition.subjects = {"a\nBcc: b@example.org"}
    condition.look()
    condition.look(10)
    assert send(condition) == 1
    assert mail.outbox[0].subject == "[Firing] a Bcc: b@example.org is planted"


def test_slack_and_pagerduty_get_their_own_formats(condition: Condition, receiver: Receiver, root: Actor) -> None:
    channel_create(actor=root, name="s", kind="slack", address=receiver.address)
    channel_create(actor=root, name="p", kind="pagerduty", address=receiver.address, secret="R0UT1NG")
    fire(condition)
    send(condition)
    condition.subjects = set()
    condition.look(60)
    send(condition, 2)
    slack = [one for one in receiver.bodies if "text" in one]
    pager = [one for one in receiver.bodies if "routing_key" in one]
    assert slack[0]["text"].startswith("*[Firing] a is planted*")
    assert [one["event_action"] for one in pager] == ["trigger", "resolve"]
    assert len({one["dedup_key"] for one in pager}) == 1
    assert pager[0]["payload"]["severity"] == "warning"
    assert (pager[0]["payload"]["class"], pager[0]["payload"]["component"]) == ("planted", "a")


def test_a_test_of_pagerduty_wakes_nobody(receiver: Receiver, root: Actor) -> None:
    channel = channel_create(actor=root, name="p", kind="pagerduty", address=receiver.address, secret="R0UT1NG")[0]
    channel_test(channel=channel, actor=root)
    assert deliveries_send() == 1
    assert receiver.bodies[0]["payload"]["severity"] == "info"


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/x", "https://localhost/x", "https://10.1.2.3/", "https://192.168.0.9/", "https://169.254.169.254/",
        "https://[::1]/", "https://[fd00::1]/", "https://[::ffff:10.0.0.1]/", "https://100.64.0.1/", "http://example.org/",
        "ftp://example.org/", "https://user:pw@example.org/", "nonsense",
    ],
)  # fmt: skip
def test_an_address_inside_is_refused_when_it_is_given(address: str, root: Actor) -> None:
    with pytest.raises(Invalid):
        check_address(address)
    with pytest.raises(Invalid):
        channel_create(actor=root, name="x", kind="webhook", address=address)


@pytest.mark.parametrize("ip", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1"])
def test_a_name_that_stands_for_an_inner_address_is_refused_when_it_is_resolved(
    ip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(family, socket.SOCK_STREAM, 0, "", (ip, 443))])
    with pytest.raises(Forbidden, match=r"hooks\.example is inside this machine"):
        post("https://hooks.example/x", b"{}", {})


def test_a_forbidden_address_is_given_up_at_once(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, settings: Any
) -> None:
    fire(condition)
    settings.ALERT_ADDRESSES = []
    send(condition)
    assert (only().state, only().attempts, receiver.got) == ("dead", 1, [])


def test_a_redirect_is_not_followed(condition: Condition, webhook: AlertChannel, receiver: Receiver) -> None:
    fire(condition)
    receiver.statuses, receiver.headers = [302], {"Location": receiver.address}
    assert send(condition) == 0
    assert len(receiver.got) == 1


def test_the_secret_is_shown_once(api: APIClient, root: Actor, receiver: Receiver, as_person: Any) -> None:
    api.force_authenticate(root.user)
    given = {"name": "hook", "kind": "webhook", "address": receiver.address + "?key=s3cr3t"}
    made = api.post("/api/v1/alerts/channels", given)
    assert made.status_code == 201, made.data
    secret, pk = made.data["secret"], made.data["id"]
    assert secret == AlertChannel.objects.get().secret
    changed = api.patch(f"/api/v1/alerts/channels/{pk}", {"quiet_from": "22:00", "quiet_until": "06:00"})
    listed = api.get("/api/v1/alerts/channels")
    client = as_person(is_superuser=True)
    page = client.get("/alerts/channels").content.decode()
    for text in (changed.content.decode(), listed.content.decode(), page):
        assert secret not in text
        assert "s3cr3t" not in text
    assert api.post(f"/api/v1/alerts/channels/{pk}/test").status_code == 202
    assert api.get("/api/v1/alerts/messages?state=waiting").data["count"] == 1
    assert deliveries_send() == 1
    assert receiver.bodies[0]["event"] == "test"
    assert api.delete(f"/api/v1/alerts/channels/{pk}").status_code == 204
    form = {"name": "two", "kind": "webhook", "address": receiver.address}
    shown = client.post("/alerts/channels/new", form).content.decode()
    assert AlertChannel.objects.get(name="two").secret in shown
    refused = client.post("/alerts/channels/new", {**form, "name": "three", "address": "http://10.0.0.1/"})
    assert refused.status_code == 400
    assert "is inside this machine or its networks" in refused.content.decode()


def test_a_removed_channel_gets_nothing(
    condition: Condition, webhook: AlertChannel, receiver: Receiver, root: Actor
) -> None:
    channel_test(channel=webhook, actor=root)
    fire(condition)
    channel_delete(channel=webhook, actor=root)
    assert send(condition) == 0
    assert not AlertDelivery.objects.exists()
