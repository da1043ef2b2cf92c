"""What was known before there were releases is carried over: revisions, and which versions were served from when."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from repository.config.document import Document
from tests.dashboard.conftest import CONFIG

BEFORE, AFTER = [("dashboard", "0009_event_process")], [("dashboard", "0012_release_history")]
TEXTS, BEGUN = [("dashboard", "0019_audit_parts")], [("dashboard", "0021_releases_are_what_clients_meet")]
NOW = timezone.now()


def migrate(target: list[tuple[str, str]]) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate(target)
    return MigrationExecutor(connection).loader.project_state(target).apps


@pytest.fixture
def before(transactional_db: None) -> Iterator[Any]:
    """The tables as they were; the present ones are put back after the test."""
    newest = [node for node in MigrationExecutor(connection).loader.graph.leaf_nodes() if node[0] == "dashboard"]
    try:
        yield migrate(BEFORE)
    finally:
        migrate(newest)


def minutes(ago: float) -> Any:
    return NOW - timedelta(minutes=ago)


def test_revisions_become_releases_with_the_versions_that_were_served_with_them(before: Any) -> None:
    get = before.get_model
    server = get("dashboard", "Server").objects.create(name="local", http_url="h", grpc_url="g", bundled=True)
    model = get("dashboard", "Model").objects.create(name="relu", desired_state="loaded", last_number=2)
    for number, ago in ((1, 60), (2, 40)):
        get("dashboard", "Version").objects.create(model=model, number=number, format="onnx", created_at=minutes(ago))
    pinned = CONFIG + "version_policy { specific { versions: [ 1 ] } }\n"
    texts = ((CONFIG, "Published with version 1", 60), (pinned, "Published with version 2", 40), (CONFIG, "Mine", 30))
    for number, (text, summary, ago) in enumerate((*texts, (pinned, "Rolled back to version 1", 10)), start=1):
        get("dashboard", "ConfigRevision").objects.create(
            model=model, number=number, text=text, sha256="x", summary=summary, created_at=minutes(ago)
        )
    for versions, ago in (([1], 59.9), ([2], 29.9), ([], 20), ([1], 9.9)):
        get("dashboard", "Release").objects.create(model=model, versions=versions, at=minutes(ago), reason="r")
    get("dashboard", "Upload").objects.create(
        model_name="relu", expires_at=NOW, proposal={"base_revision": 3, "format": "onnx"}, publication={"number": 3}
    )

    after = migrate(AFTER)
    releases = after.get_model("dashboard", "Release").objects.order_by("number")
    assert [(row.number, row.text, row.versions, row.kind) for row in releases] == [
        (1, Document.read(CONFIG).stamped(1), [1], "publish"),
        (2, Document.read(pinned).stamped(2), [1], "publish"),
        (3, Document.read(CONFIG).stamped(3), [2], "configure"),
        (4, Document.read(pinned).stamped(4), [1], "go_back"),
    ]
    spans = after.get_model("dashboard", "ReleaseSpan").objects.order_by("started_at")
    assert [(row.release.number, row.started_at, row.ended_at, row.server_id) for row in spans] == [
        (1, minutes(59.9), minutes(40), server.pk),
        (2, minutes(40), minutes(30), server.pk),
        (3, minutes(29.9), minutes(20), server.pk),
        (4, minutes(9.9), None, server.pk),
    ]
    upload = after.get_model("dashboard", "Upload").objects.get()
    assert (upload.proposal, upload.publication) == ({"base_release": 3, "format": "onnx"}, {"number": 3})


def test_each_set_of_versions_under_one_text_can_be_gone_back_to(before: Any) -> None:
    """The commonest way before: versions published one after the other under "the latest"; the last one did not load."""
    get = before.get_model
    server = get("dashboard", "Server").objects.create(name="local", http_url="h", grpc_url="g", bundled=True)
    model = get("dashboard", "Model").objects.create(name="relu", desired_state="loaded", last_number=3, generation=3)
    get("dashboard", "ModelSync").objects.create(server=server, model=model, applied_generation=2, error="no weights")
    get("dashboard", "ConfigRevision").objects.create(
        model=model, number=1, text=CONFIG, sha256="x", summary="Published with version 1", created_at=minutes(60)
    )
    for number, ago in ((1, 60), (2, 40), (3, 20)):
        get("dashboard", "Version").objects.create(
            model=model, number=number, format="onnx", state="published", created_at=minutes(ago)
        )
        get("dashboard", "Release").objects.create(
            model=model, versions=[number], at=minutes(ago), reason=f"Published version {number}", actor_name="olga"
        )
    get("dashboard", "Upload").objects.create(model_name="relu", expires_at=NOW, proposal={"base_revision": 1})

    after = migrate(AFTER)
    releases = after.get_model("dashboard", "Release").objects.order_by("number")
    assert [(row.number, row.text, row.versions, row.kind, row.created_by_name) for row in releases] == [
        (1, Document.read(CONFIG).stamped(1), [1], "publish", ""),
        (2, Document.read(CONFIG).stamped(2), [2], "publish", "olga"),
        (3, Document.read(CONFIG).stamped(3), [3], "publish", "olga"),
    ]
    spans = after.get_model("dashboard", "ReleaseSpan").objects.order_by("started_at")
    assert [(row.release.number, row.started_at, row.ended_at) for row in spans] == [
        (1, minutes(60), minutes(40)),
        (2, minutes(40), None),
    ]
    assert after.get_model("dashboard", "Upload").objects.get().proposal == {"base_release": 1}


def test_a_model_that_was_never_loaded_has_the_versions_that_its_policy_chose(before: Any) -> None:
    get = before.get_model
    model = get("dashboard", "Model").objects.create(name="idle", desired_state="unloaded")
    for number in (1, 2):
        get("dashboard", "Version").objects.create(model=model, number=number, format="onnx", created_at=minutes(5))
    for number, text in ((1, CONFIG), (2, "no text {")):
        get("dashboard", "ConfigRevision").objects.create(
            model=model, number=number, text=text, sha256="x", summary="Adopted", created_at=minutes(5 - number)
        )

    after = migrate(AFTER)
    releases = after.get_model("dashboard", "Release").objects.order_by("number")
    assert [(row.versions, row.kind) for row in releases] == [([2], "adopt"), ([], "adopt")]
    assert not after.get_model("dashboard", "ReleaseSpan").objects.exists()


def test_releases_with_which_clients_met_the_same_become_one(before: Any) -> None:
    get = migrate(TEXTS).get_model
    server = get("dashboard", "Server").objects.create(name="local", http_url="h", grpc_url="g", bundled=True)
    model = get("dashboard", "Model").objects.create(name="relu", desired_state="loaded")
    pinned = CONFIG + "version_policy { specific { versions: [ 1 ] } }\n"
    texts = ((CONFIG, [1]), (pinned, [1]), ("# mine\n" + pinned, [1]), (CONFIG, [2]), ("no text {", [2]), (CONFIG, [2]))
    spans, checks = get("dashboard", "ReleaseSpan").objects, get("dashboard", "ReleaseCheck").objects
    for number, (text, versions) in enumerate(texts, start=1):
        release = get("dashboard", "Release").objects.create(
            model=model, number=number, text=Document.read(text).stamped(number), sha256="x", versions=versions
        )
        begin, end = minutes(70 - 10 * number), minutes(60 - 10 * number) if number < 6 else None
        spans.create(release=release, model=model, server=server, started_at=begin, ended_at=end)
        checks.create(release=release, server=server, state="passed", started_at=begin)

    after = migrate(BEGUN).get_model
    rows = after("dashboard", "Release").objects.order_by("number").values_list("number", "continues__number")
    assert list(rows) == [(1, None), (2, 1), (3, 1), (4, None), (5, None), (6, None)]
    reported = after("dashboard", "ReleaseSpan").objects.order_by("pk")
    assert [(row.release.number, row.started_at, row.ended_at) for row in reported] == [
        (1, minutes(60), minutes(30)),
        (4, minutes(30), minutes(20)),
        (5, minutes(20), minutes(10)),
        (6, minutes(10), None),
    ]
    checked = after("dashboard", "ReleaseCheck").objects.order_by("release__number")
    assert [row.release.number for row in checked] == [1, 4, 5, 6]
    assert checked[0].started_at == minutes(40), "the last word counts"
