"""Each default alert is found when its condition holds, and only then."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.alerts import finders, machine, table
from dashboard.alerts.channels import rule_create, rule_delete
from dashboard.alerts.facts import Facts, Finding
from dashboard.alerts.finders import growing
from dashboard.alerts.formats import message_of
from dashboard.alerts.outbox import alerts_tell
from dashboard.alerts.services import alerts_evaluate
from dashboard.alerts.tasks import stand_in
from dashboard.metrics.samples import Sample, encode
from dashboard.metrics.services import metrics_store_tick
from dashboard.metrics.usage import Usage
from dashboard.models import (
    Alert,
    AlertChannel,
    ApiToken,
    DriftMonitor,
    DriftWindow,
    MetricSample,
    ModelState,
    ModelSync,
    Objective,
    ObjectiveCount,
    Server,
    ServerEnvironment,
    ServerEvent,
    ServerState,
    Version,
)
from dashboard.shared.exceptions import Invalid
from tests.dashboard.alerts.conftest import Receiver
from tests.dashboard.conftest import beaten, serve
from tests.dashboard.feeds import tick, usage

pytestmark = pytest.mark.django_db


def found(find: Callable[[Facts], Any], now: datetime | None = None) -> list[Finding]:
    return list(find(Facts(now or timezone.now())))


def subjects(find: Callable[[Facts], Any]) -> list[str]:
    return [one.subject for one in found(find)]


def test_nothing_is_found_where_all_is_well(relu: Version) -> None:
    assert [kind.name for kind in table.DEFAULTS if kind.name not in ("memory", "disk") and found(kind.find)] == []


def test_a_model_that_no_version_serves_is_not_ready(relu: Version, server: Server) -> None:
    ModelState.objects.update(state="UNAVAILABLE", reason="the file is damaged", failed=True)
    ModelSync.objects.create(server=server, model=relu.model, error="the file is damaged", attempts=3)
    (one,) = found(finders.not_ready)
    assert (one.subject, one.detail, one.address) == ("relu", "the file is damaged", "/models/relu/log")
    assert subjects(finders.load_failed) == subjects(finders.serves_instead) == []
    ServerState.objects.update(state="down")
    assert subjects(finders.not_ready) == [], "the server is the fault"
    assert subjects(finders.server_down) == ["local"]


def test_data_drift_in_the_newest_window_of_a_monitor_is_found(relu: Version) -> None:
    now = timezone.now()
    monitor = DriftMonitor.objects.create(
        model=relu.model, window=100, alpha=0.01, threshold=0.1, windows=1, drifted_since=now
    )
    column = {
        "kind": "number",
        "test": "ks",
        "statistic": 1.0,
        "p": 0.0,
        "adjusted_p": 0.0,
        "score_name": "w",
        "score": 1,
    }
    window = DriftWindow.objects.create(
        monitor=monitor, number=1, first_at=now, last_at=now, requests=100, reference_requests=100, level=0.01,
        compared=7, drifted=6, columns=[{**column, "name": f"x[{at}]", "drifted": at != 6} for at in range(7)],
    )  # fmt: skip
    (one,) = found(finders.data_drift)
    assert (one.title, one.model_name) == ("6 columns of relu drifted", "relu")
    assert one.detail == f"In window 1 of monitor {monitor.pk}: x[0], x[1], x[2], x[3], x[4] and 1 more."
    assert one.address == f"/models/relu/data-drift?monitor={monitor.pk}"
    window.delete()
    DriftMonitor.objects.update(drifted_since=None)
    assert found(finders.data_drift) == []


def test_a_model_that_loads_for_long_is_not_ready(relu: Version) -> None:
    ModelState.objects.update(state="LOADING", updated_at=timezone.now() - timedelta(minutes=14))
    assert subjects(finders.not_ready) == []
    ModelState.objects.update(updated_at=timezone.now() - timedelta(minutes=16))
    assert subjects(finders.not_ready) == ["relu"]


def test_a_failed_load_while_an_older_version_serves(relu: Version, server: Server) -> None:
    serve(relu.model)
    ModelSync.objects.create(server=server, model=relu.model, error="no memory", attempts=1)
    assert (subjects(finders.load_failed), subjects(finders.not_ready)) == (["relu"], [])


def test_the_last_good_release_in_place_of_the_wanted_one(
    relu: Version, server: Server, published: Callable[..., Version]
) -> None:
    serve(relu.model)
    published(load=True, make_live=True)
    ModelSync.objects.update_or_create(server=server, model=relu.model, defaults={"error": "it failed"})
    (one,) = found(finders.serves_instead)
    assert one.subject == "relu"
    assert "in place of release" in one.title
    assert subjects(finders.load_failed) == []


def test_crashes_in_a_row(server: Server) -> None:
    for _ in range(3):
        assert subjects(finders.crashes) == []
        ServerEvent.objects.create(server=server, kind="crashed", message="Killed by SIGSEGV.")
    (one,) = found(finders.crashes)
    assert (one.subject, one.detail) == ("local", "Killed by SIGSEGV.")


def queue(*minutes: int) -> dict[int, int]:
    return {at * 10: minutes[at // 6] for at in range(6 * len(minutes))}


@pytest.mark.parametrize(
    ("pending", "grows"),
    [
        (queue(5, 20, 40), True),
        (queue(40, 40, 40), False),
        (queue(40, 20, 5), False),
        (queue(1, 5, 12), False),
        (queue(30, 32, 34), False),
        ({}, False),
        ({at: 100 if at == 170 else 0 for at in range(0, 180, 10)}, False),
    ],
)
def test_a_queue_grows_if_each_minute_is_longer(pending: dict[int, int], grows: bool) -> None:
    assert growing(pending, 180) is grows


def test_a_growing_queue_is_found_in_the_history(server: Server) -> None:
    now = int(time.time()) // 10 * 10
    for at in range(now - 190, now + 1):
        pending = 1 + max(0, at - now + 190) ** 2 // 100
        metrics_store_tick(server, tick(at, digits=usage(1, 1000, pending=pending)), at, at - 1)
    (one,) = found(finders.queue_grows, datetime.fromtimestamp(now + 1, UTC))
    assert (one.subject, one.address) == ("digits", f"/models/digits/?at={now + 1}#charts")


@pytest.fixture
def staging(server: Server) -> Server:
    """A server of staging that serves beside production."""
    environment = ServerEnvironment.objects.create(name="staging")
    found = Server.objects.create(name="staging-1", http_url="http://127.0.0.1:3", environment=environment)
    ServerState.objects.create(server=found, state="ready")
    return found


def ten_seconds(server: Server, at: int, used: Usage) -> None:
    """What `watch` stores of ten seconds of `relu`."""
    for name, version in (("", 0), ("relu", 1)):
        data = encode(Sample(used.pack()))
        MetricSample.objects.create(server=server, model_name=name, version=version, resolution=10, at=at, data=data)


def test_alerts_about_models_tell_of_production_only(
    relu: Version, server: Server, staging: Server, actor: Actor
) -> None:
    now = int(time.time()) // 10 * 10
    for at in range(now - 200, now, 10):
        pending = 1 + max(0, at - now + 190) ** 2 // 100
        ten_seconds(staging, at, usage(90, 80_000, pending=pending))
        ten_seconds(server, at, usage(20, 80_000))
    when = datetime.fromtimestamp(now + 1, UTC)
    assert set(Facts(when).pending["relu"].values()) == {0}
    assert found(finders.queue_grows, when) == []
    rule = rule_create(actor=actor, name="slow", figure="p99", model_name="relu", threshold=50.0, minutes=1)
    assert [one.subject for one in found(table.kind_of_rule(rule).find, when)] == ["relu on local"]
    ModelState.objects.update(updated_at=timezone.now())
    ModelState.objects.create(server=staging, model_name="relu", version=1, state="UNAVAILABLE", failed=True)
    assert subjects(finders.not_ready) == subjects(finders.load_failed) == []
    ServerState.objects.filter(server=staging).update(state="down")
    (one,) = found(finders.server_down)
    assert one.title == "Server staging-1 of staging does not answer"


def test_an_uneven_load_is_found_in_its_environment(server: Server, staging: Server) -> None:
    other = Server.objects.create(name="other", http_url="http://127.0.0.1:2")
    for one in (server, other):
        ServerState.objects.update_or_create(server=one, defaults={"state": "ready"})
    now = int(time.time()) // 10 * 10

    def load(**rates: int) -> list[Finding]:
        MetricSample.objects.all().delete()
        for name, rate in rates.items():
            one = Server.objects.get(name=name.replace("_", "-"))
            for at in range(now - 90, now, 10):
                ten_seconds(one, at, usage(10 * rate, 1000))
        return found(finders.skew, datetime.fromtimestamp(now + 1, UTC))

    assert load(local=23, other=17, staging_1=99) == [], "1.15 times the mean, and staging has one server"
    (one,) = load(local=14, other=6)
    assert (one.subject, one.address) == ("production", "/environments/production/")
    assert one.title == "Server local of production gets 1.4 times the mean of its servers"
    assert load(local=9, other=0) == [], "so few are chance"


def test_a_burning_budget_is_told_by_its_most_urgent_rule(relu: Version, webhook: AlertChannel) -> None:
    now = int(time.time()) // 60 * 60
    objective = Objective.objects.create(model=relu.model, percent=99.9, counted=True)
    for minute in range(60):
        ObjectiveCount.objects.create(
            objective=objective, resolution=60, at=now - 60 * minute, requests=600, failed=60, slow=0
        )
    assert subjects(finders.burns("burn_fast")) == subjects(finders.burns("burn")) == ["relu"]
    for _ in range(2):
        alerts_evaluate(only=["burn_fast", "burn", "burn_slow"])
        alerts_tell()
    (alert,) = Alert.objects.all()
    assert (alert.kind, alert.state) == ("burn_fast", "firing")
    assert "100 times too fast" in alert.title
    assert alert.deliveries.count() == 1
    since = int(alert.fired_at.timestamp()) - 3600  # type: ignore[union-attr]
    assert alert.cause_address == f"/models/relu/requests?from={since}#failed"
    alert.resolved_at = datetime.fromtimestamp(now, UTC)
    assert alert.cause_address == f"/models/relu/requests?from={since}&to={now + 1}#failed"
    ObjectiveCount.objects.update(failed=0, slow=60)
    Objective.objects.update(latency_ms=50.0)
    (one,) = found(finders.burns("burn_fast"))
    assert one.address.endswith("#slowest")
    assert "0 requests failed and" in one.detail
    told = message_of(alert.deliveries.get())
    assert (told.cause, told.button) == (alert.cause_address, "See the failed requests")
    assert f"See the failed requests: {told.cause}" in told.text


def test_memory_that_is_nearly_full(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  40 kB\n")
    assert machine.machine_memory(tmp_path) == (40 << 10, 1000 << 10)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    for name, text in (("max", "100000"), ("current", "99000"), ("stat", "inactive_file 200\nanon 5")):
        (group / f"memory.{name}").write_text(text)
    assert machine.machine_memory(tmp_path) == (1200, 100000)
    (group / "memory.max").write_text("max")
    assert machine.machine_memory(tmp_path) == (40 << 10, 1000 << 10)
    assert machine.machine_memory(tmp_path / "elsewhere") is None


def test_the_alert_about_memory_leads_to_who_holds_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_memory", lambda: machine.Memory(4, 1000))
    assert [one.address for one in found(machine.memory_low)] == ["/servers/local/memory"]


def test_a_disk_below_its_reserve(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR, settings.DISK_RESERVE_BYTES = tmp_path, 1
    assert found(machine.disk_full) == []
    settings.DISK_RESERVE_BYTES = 1 << 60
    (one,) = found(machine.disk_full)
    assert (one.severity, one.subject) == ("critical", "data folder")


def test_tokens_and_certificates_that_end(actor: Actor, settings: Any, tmp_path: Path) -> None:
    now = timezone.now()
    for name, days in (("soon", 3), ("later", 30), ("past", -1), ("long past", -30)):
        ApiToken.objects.create(user=actor.user, name=name, hash=name, rights=[], expires_at=now + timedelta(days=days))
    path = tmp_path / "server.pem"
    write_certificate(path, now + timedelta(days=2))
    settings.SERVER_FLAGS = [f"--grpc-server-certificate={path}", "--grpc-server-certificate=/nowhere", "--x=1"]
    titles = [one.title for one in found(machine.ends_soon)]
    assert [title.split(" ends ")[0].split(" has ")[0] for title in titles] == [
        "Token past of olga",
        "Token soon of olga",
        "Certificate server.pem",
    ]


def write_certificate(path: Path, end: datetime) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(end - timedelta(days=9)).not_valid_after(end)
    path.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def test_an_own_alert_watches_a_figure_of_its_window(server: Server, relu: Version, actor: Actor) -> None:
    now = int(time.time()) // 10 * 10
    for at in range(now - 150, now + 1):
        metrics_store_tick(server, tick(at, relu=usage(2, 80_000)), at, at - 1)
    rule = rule_create(actor=actor, name="slow", figure="p99", model_name="relu", threshold=50.0, minutes=1)
    low = rule_create(actor=actor, name="idle", figure="rps", threshold=1.0, minutes=1, above=False)
    big = rule_create(actor=actor, name="big", figure="rss", threshold=10.0, minutes=1)
    when = datetime.fromtimestamp(now + 1, UTC)
    (one,) = found(table.kind_of_rule(rule).find, when)
    assert one.title == "slow: p99 latency of relu is above 50 ms"
    assert one.address == f"/models/relu/requests?from={now - 90}&server=local#slowest"
    assert found(table.kind_of_rule(low).find, when) == []
    assert [f.subject for f in found(table.kind_of_rule(big).find, when)] == ["local"]
    alerts_evaluate(now=when)
    assert set(Alert.objects.filter(state="firing").values_list("kind", flat=True)) >= {table.kind_name(rule)}
    later = when + timedelta(hours=1)
    unmeasured = found(table.kind_of_rule(rule).find, later)
    assert [f.opens for f in unmeasured] == [False], "nobody knows whether it is over"
    alerts_evaluate(now=later)
    assert Alert.objects.get(kind=table.kind_name(rule)).state == "firing"
    rule_delete(rule=rule, actor=actor)
    alert = Alert.objects.get(kind=table.kind_name(rule))
    assert (alert.state, alert.events.last().who) == ("resolved", "olga")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"figure": "colour"}, "expected rps"),
        ({"model_name": "nope"}, "there is no model"),
        ({"figure": "rss", "model_name": "relu"}, "a whole server"),
        ({"minutes": 0}, "expected 1 to"),
        ({"threshold": float("inf")}, "expected a number"),
        ({"name": " "}, "needs a name"),
        ({"severity": "loud"}, "expected critical"),
    ],
)
def test_a_wrong_own_alert_is_refused(relu: Version, actor: Actor, given: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        rule_create(actor=actor, **{"name": "x", "figure": "p99", "threshold": 1.0, "minutes": 5, **given})


def test_the_worker_tells_that_watch_is_silent(
    server: Server, webhook: AlertChannel, receiver: Receiver, settings: Any
) -> None:
    watch = beaten("watch")
    assert stand_in() is False
    os.utime(watch, (time.time() - 60, time.time() - 60))
    assert stand_in() is True
    stand_in()
    assert [one["title"] for one in receiver.bodies] == ["The watcher does not answer"]
