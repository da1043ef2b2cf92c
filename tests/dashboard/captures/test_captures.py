"""Captures over REST and on pages: who may keep and read clients' requests, what is asked of the server, and deletion."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.accounts.tokens import token_create
from dashboard.captures.services import capture_readers_set, captures_expire
from dashboard.models import AuditEntry, Capture, Version
from dashboard.shared.exceptions import Invalid, StorageFull
from repository.core.capture_files import Record, encoded, read_rows
from repository.core.captures import WANTED, file_name, read_wanted

pytestmark = pytest.mark.django_db
CAPTURES = "/api/v1/models/relu/captures"


def started(api: APIClient, **fields: Any) -> Capture:
    answer = api.post(CAPTURES, {"consent": True} | fields, format="json")
    assert answer.status_code == 201, answer.data
    return Capture.objects.get(pk=answer.data["id"])


def written(capture: Capture, value: float = 1.5) -> None:
    """What the server writes of one request."""
    tensor = np.full((1, 4), value, np.float32)
    record = Record(1, "r-1", 1.7e9, 1, "", None, 250, {"x": tensor}, {"y": tensor})
    (capture.folder / file_name(1, 1)).write_bytes(encoded([record]))


def test_a_capture_tells_the_server_what_to_keep(relu: Version, api: APIClient) -> None:
    capture = started(api, percent=10, hours=2, mib=5, inputs={"x": "round 0.1"}, outputs={"y": "drop"}, versions=[1])
    wanted = read_wanted(capture.folder)
    assert wanted is not None
    assert (wanted["model"], wanted["share"], wanted["bytes"], wanted["versions"]) == ("relu", 0.1, 5 << 20, [1])
    assert wanted["inputs"] == {"x": {"rule": "round", "step": 0.1}}
    assert wanted["outputs"] == {"y": {"rule": "drop"}}
    assert 7100 < wanted["until"] - timezone.now().timestamp() <= 7200
    assert (capture.folder / WANTED).stat().st_mode & 0o77 == 0
    row = api.get(f"{CAPTURES}/{capture.pk}").data
    assert (row["percent"], row["mib"], row["running"], row["counts"]) == (10, 5, True, None)
    assert api.get(CAPTURES).data["results"][0]["id"] == str(capture.pk)
    entry = AuditEntry.objects.get(action="capture.start")
    assert wanted["salt"] not in str(entry.after)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"consent": False}, "confirm"),
        ({"percent": 0}, "share"),
        ({"percent": 101}, "share"),
        ({"hours": 721}, "720 hours"),
        ({"mib": 1 << 30}, "MiB"),
        ({"keep_days": 91}, "90 days"),
        ({"versions": [9]}, "no version 9"),
        ({"inputs": {"z": "drop"}}, "no tensor 'z'"),
        ({"inputs": {"x": "hash"}}, "only BYTES"),
        ({"inputs": {"x": "round"}}, "a step"),
        ({"inputs": {"x": "round nan"}}, "a step"),
        ({"outputs": {"y": "blur"}}, "expected 'drop'"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_a_sentence(
    relu: Version, api: APIClient, fields: dict[str, Any], words: str
) -> None:
    answer = api.post(CAPTURES, {"consent": True} | fields, format="json")
    assert answer.status_code == 400
    assert words in str(answer.data)
    assert list(settings.CAPTURE_DIR.iterdir()) == []


def test_a_stopped_capture_stays_to_be_read(relu: Version, api: APIClient) -> None:
    capture = started(api)
    written(capture)
    answer = api.post(f"{CAPTURES}/{capture.pk}/stop")
    assert answer.data["running"] is False
    wanted = read_wanted(capture.folder)
    assert wanted is not None
    assert wanted["stopped"]
    assert api.get(f"{CAPTURES}/{capture.pk}/files").data["results"] == [{"first": 1, "rows": 1}]


def test_a_file_is_read_by_those_who_may_and_leaves_an_audit_entry(
    relu: Version, api: APIClient, tmp_path: Path
) -> None:
    capture = started(api)
    written(capture)
    answer = api.get(f"{CAPTURES}/{capture.pk}/files/1")
    assert answer["Cache-Control"] == "no-store"
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(b"".join(answer.streaming_content))  # type: ignore[attr-defined]
    answer.close()
    assert read_rows(copy).ids == ["r-1"]
    assert AuditEntry.objects.filter(action="capture.read").count() == 1
    assert api.get(f"{CAPTURES}/{capture.pk}/files/2").status_code == 404


def test_only_named_readers_read_the_captures_of_a_model(
    relu: Version, api: APIClient, person: Callable[..., Any]
) -> None:
    capture = started(api)
    written(capture)
    other = person("operate")
    assert api.put("/api/v1/models/relu/capture_readers", {"readers": []}, format="json").status_code == 403
    with pytest.raises(Invalid, match="no person 'nobody'"):
        capture_readers_set(model=relu.model, actor=SYSTEM, readers=["nobody"])
    capture_readers_set(model=relu.model, actor=SYSTEM, readers=[other.get_username()])
    assert api.get("/api/v1/models/relu/capture_readers").data == {"readers": [other.get_username()]}
    assert api.get(f"{CAPTURES}/{capture.pk}/files/1").status_code == 403
    assert api.post(CAPTURES, {"consent": True}, format="json").status_code == 403
    assert not AuditEntry.objects.filter(action="capture.read").exists()
    capture_readers_set(model=relu.model, actor=SYSTEM, readers=[])
    answer = api.get(f"{CAPTURES}/{capture.pk}/files/1")
    answer.close()
    assert answer.status_code == 200


def test_a_deletion_takes_everything_at_once(relu: Version, api: APIClient) -> None:
    capture = started(api)
    written(capture)
    assert api.delete(f"{CAPTURES}/{capture.pk}").status_code == 204
    assert list(settings.CAPTURE_DIR.iterdir()) == []
    assert not Capture.objects.exists()
    assert api.get(f"{CAPTURES}/{capture.pk}").status_code == 404


def test_a_disk_that_refuses_a_deletion_is_told_and_keeps_the_capture(relu: Version, api: APIClient) -> None:
    capture = started(api)
    in_the_way = capture.folder.with_name(f".deleted-{capture.pk}")
    (in_the_way / "file").mkdir(parents=True)  # the folder cannot be renamed, as on a read-only disk
    answer = api.delete(f"{CAPTURES}/{capture.pk}")
    assert (answer.status_code, Capture.objects.count(), capture.folder.is_dir()) == (507, 1, True)
    assert b"the capture cannot be deleted from the disk" in answer.content
    free = started(api)
    Capture.objects.update(keep_until=timezone.now())
    with pytest.raises(StorageFull):
        captures_expire()
    assert [one.pk for one in Capture.objects.all()] == [capture.pk], "the other one is deleted"
    assert not free.folder.exists()


def test_old_captures_and_folders_without_a_row_are_deleted(
    relu: Version, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, old, orphan = started(api), started(api), started(api)
    Capture.objects.filter(pk=old.pk).update(keep_until=timezone.now() - timedelta(seconds=1))
    Capture.objects.filter(pk=orphan.pk).delete()
    assert captures_expire() == 1
    assert {path.name for path in settings.CAPTURE_DIR.iterdir()} == {str(kept.pk), str(orphan.pk)}  # it may be new
    monkeypatch.setattr("dashboard.captures.services._a_minute_ago", lambda: timezone.now().timestamp() + 60)
    captures_expire()
    assert [path.name for path in settings.CAPTURE_DIR.iterdir()] == [str(kept.pk)]


def test_the_pages_start_show_and_delete_a_capture(relu: Version, as_person: Callable[..., Client]) -> None:
    operator, viewer = as_person("operate"), as_person()
    refused = operator.post("/models/relu/captures/start", {"percent": "x", "consent": "on"})
    assert refused.status_code == 400
    assert b'value="x"' in refused.content
    assert operator.post("/models/relu/captures/start", {"input.x": "round 0.5", "consent": "on"}).status_code == 302
    capture = Capture.objects.get()
    written(capture)
    page = f"/models/relu/captures/{capture.pk}"
    assert "x: round 0.5" in operator.get(page).content.decode()
    assert "FP32 [1, 4]: 1.5" in operator.post(f"{page}/requests").content.decode()
    assert "r-1" not in viewer.get(page).content.decode()
    assert viewer.post(f"{page}/requests").status_code == 403
    assert operator.post(f"{page}/stop").status_code == 302
    assert operator.post(f"{page}/delete").status_code == 302
    assert "No captures yet" in operator.get("/models/relu/captures").content.decode()


def test_a_damaged_file_is_told_on_the_page(relu: Version, api: APIClient, as_person: Callable[..., Client]) -> None:
    capture = started(api)
    (capture.folder / file_name(1, 1)).write_bytes(b"PAR1")
    answer = as_person("operate").post(f"/models/relu/captures/{capture.pk}/requests")
    assert answer.status_code == 409
    assert b"cannot be read" in answer.content


@contextlib.contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """Take the folder's rights from this account. Those of root cannot be taken, so it becomes another account meanwhile."""
    folder.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_a_folder_whose_rights_are_taken_away_is_told_in_a_sentence(
    relu: Version, api: APIClient, as_person: Callable[..., Client], settings: Any
) -> None:
    settings.CAPTURE_DIR = Path(tempfile.mkdtemp(dir="/tmp"))  # its parents are open to all accounts
    settings.CAPTURE_DIR.chmod(0o755)
    capture = started(api)
    written(capture)
    page, why = f"/models/relu/captures/{capture.pk}", "the folder of the capture cannot be read (Permission denied)"
    with without_rights(capture.folder):
        assert why in api.get(f"{CAPTURES}/{capture.pk}").data["counts"]["trouble"]
        for address in ("/files", "/files/1"):
            answer = api.get(f"{CAPTURES}/{capture.pk}{address}")
            assert (answer.status_code, why in str(answer.data)) == (409, True)
        for address in ("/models/relu/captures", page):
            assert why[4:] in as_person("operate").get(address).content.decode()
        assert as_person("operate").post(f"{page}/requests").status_code == 409
        assert captures_expire() == 0
    shutil.rmtree(settings.CAPTURE_DIR)
    assert api.get(f"{CAPTURES}/{capture.pk}/files").data["results"] == []


def test_a_capture_of_some_tokens_names_accounts_and_no_secret(
    relu: Version, api: APIClient, actor: Actor, settings: Any
) -> None:
    assert actor.user is not None
    token, secret = token_create(user=actor.user, actor=actor, name="shop", rights=["infer"])
    name = actor.user.get_username()
    refused = api.post(CAPTURES, {"consent": True, "accounts": [name]}, format="json")
    assert (refused.status_code, "SLIPWAY_REQUIRE_TOKENS is not 1" in str(refused.data)) == (409, True)
    settings.REQUIRE_TOKENS = True
    unknown = api.post(CAPTURES, {"consent": True, "accounts": [f"{name}: other"]}, format="json")
    assert (unknown.status_code, "there is no token or person" in str(unknown.data)) == (400, True)
    capture = started(api, accounts=[f"{name}: shop", name])
    wanted = (capture.folder / WANTED).read_text()
    assert secret not in wanted
    assert token.hash not in wanted
    assert api.get(f"{CAPTURES}/{capture.pk}").data["accounts"] == sorted([name, f"{name}: shop"])
