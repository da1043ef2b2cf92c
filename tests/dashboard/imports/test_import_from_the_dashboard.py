"""Importing a model store over REST and from the page: allowed folders, uploaded archives, the job, who may."""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.access.happenings import changes
from dashboard.imports import loads, services
from dashboard.jobs.runner import job_run
from dashboard.jobs.services import job_cancel
from dashboard.models import AuditEntry, Job, Model, Server, ServerState, Upload, Version
from dashboard.releases import life
from dashboard.releases.selectors import current_document, newest_release
from dashboard.shared.choices import DesiredState, UploadState
from repository.config import model_config
from tests.dashboard.conftest import serve, text_of
from tests.support.torchserve_archives import archive, war

pytestmark = pytest.mark.django_db


@pytest.fixture
def allowed(settings: Any, tmp_path: Path, unqueued: list[int]) -> Path:
    """A store that an administrator has allowed, and a link in it to an archive elsewhere."""
    folder = tmp_path / "allowed"
    archive(folder / "noop.mar")
    (folder / "secret.mar").symlink_to(archive(tmp_path / "elsewhere" / "secret.mar"))
    settings.IMPORT_FOLDERS = [folder]
    return folder


@pytest.fixture
def pages(actor: Actor) -> Client:
    client = Client()
    assert actor.user is not None
    client.force_login(actor.user)
    return client


def rows_of(report: Any) -> dict[str, str]:
    return {row["archive"]: row["outcome"] for row in report["rows"]}


def test_an_allowed_folder_is_looked_at_and_taken_over(api: APIClient, allowed: Path) -> None:
    folders = api.get("/api/v1/imports/folders").json()["results"]
    assert folders == [{"folder": str(allowed), "archives": 2, "config": False}]
    asked = {"folder": str(allowed)}
    report = api.post("/api/v1/imports", {**asked, "dry_run": True}).json()
    assert rows_of(report) == {"noop.mar": "would"}
    assert "secret.mar is passed over" in report["notes"][-1]
    assert not Model.objects.exists()

    answer = api.post("/api/v1/imports", asked)
    assert (answer.status_code, answer.headers["Location"]) == (202, f"/api/v1/jobs/{answer.json()['id']}")
    job_run(job_id=answer.json()["id"])
    job = api.get(answer.headers["Location"]).json()
    assert (job["state"], rows_of(job["result"])) == ("succeeded", {"noop.mar": "taken"})
    assert Model.objects.get().desired_state == DesiredState.LOADED


@pytest.mark.parametrize("folder", ["/etc", "..", "/"])
def test_no_other_folder_may_be_named(api: APIClient, allowed: Path, folder: str) -> None:
    for named in (folder, f"{allowed}/../{folder}"):
        answer = api.post("/api/v1/imports", {"folder": named})
        assert (answer.status_code, Job.objects.count()) == (403, 0)
        assert "SLIPWAY_IMPORT_FOLDERS" in answer.json()["error"]
    (allowed / "config.properties").write_text(f"model_store={folder}\n")
    answer = api.post("/api/v1/imports", {"folder": str(allowed), "dry_run": True})
    assert (answer.status_code, "outside of the folders" in answer.json()["error"]) == (403, True)


def test_an_environment_variable_of_the_dashboard_is_not_put_in(
    api: APIClient, allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the dashboard")
    (allowed / "config.properties").write_text("load_models=$$SECRET$$\n")
    answer = api.post("/api/v1/imports", {"folder": str(allowed), "dry_run": True})
    assert answer.status_code == 400
    assert answer.json()["error"] == "load_models asks for the environment variable SECRET, which is not set"


def test_archives_that_were_uploaded_are_taken_with_their_properties(
    api: APIClient, tmp_path: Path, received: Callable[..., Upload]
) -> None:
    content = {name: archive(tmp_path / name).read_bytes() for name in ("one.mar", "two.mar")}
    uploads = [str(received({name: data}, name.replace(".", "_")).pk) for name, data in content.items()]
    properties = 'models={"one": {"1.0": {"batchSize": 6}}}\nkeystore_pass=hidden\nload_models=one.mar\n'
    answer = api.post("/api/v1/imports", {"uploads": uploads, "properties": properties})
    assert answer.status_code == 202
    assert "hidden" not in answer.content.decode()
    job_run(job_id=answer.json()["id"])
    job = Job.objects.get(pk=answer.json()["id"])
    assert (job.state, rows_of(job.result)) == ("succeeded", {"one.mar": "taken", "two.mar": "taken"})
    assert model_config.parse(current_document(Model.objects.get(name="one")).text).max_batch_size == 6
    states = dict(Model.objects.values_list("name", "desired_state"))
    assert states == {"one": DesiredState.LOADED, "two": DesiredState.UNLOADED}
    assert set(Upload.objects.values_list("state", flat=True)) == {UploadState.PUBLISHED}
    assert "archives that were uploaded" in api.post("/api/v1/imports", {}).json()["error"]


def test_a_workflow_is_uploaded_with_the_archives_of_its_models(
    api: APIClient, pages: Client, tmp_path: Path, received: Callable[..., Upload], settings: Any, server: Any
) -> None:
    settings.SERVER_FLAGS = ["--torchserve=true"]
    flow = war(tmp_path / "flow.war", "flow", "models: {one: {url: one.mar}}\ndag: {one: [post]}\n").read_bytes()
    alone = received({"flow.war": flow}, "flow_alone")
    job = api.post("/api/v1/imports", {"uploads": [str(alone.pk)]}).json()
    job_run(job_id=job["id"])
    assert "its node 'one' needs one.mar" in Job.objects.get(pk=job["id"]).result["rows"][0]["message"]

    archived = archive(tmp_path / "one.mar").read_bytes()
    uploads = [str(received({"flow.war": flow}, "flow").pk), str(received({"one.mar": archived}, "one").pk)]
    job = api.post("/api/v1/imports", {"uploads": uploads}).json()
    job_run(job_id=job["id"])
    assert Job.objects.get(pk=job["id"]).state == "succeeded"
    assert set(Model.objects.values_list("name", flat=True)) == {"one", "flow", "flow__one", "flow__post"}
    states = dict(Upload.objects.filter(pk__in=uploads).values_list("pk", "state"))
    assert sorted(states.values()) == [UploadState.CANCELLED, UploadState.PUBLISHED]  # of the workflow nothing is left
    page = text_of(pages, "/models/flow/playground")
    assert 'data-snippet="predictions" aria-pressed="true"' in page
    assert '"workflow": true' in page


def test_an_import_that_was_cancelled_goes_on_from_its_page(
    pages: Client, actor: Actor, allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(allowed / "other.mar")
    page = pages.get("/models/import", {"folder": str(allowed)}).content.decode()
    assert "Import 2 archives" in page
    assert pages.post("/models/import/start", {"folder": "/etc"}).status_code == 400
    job = Job.objects.get(pk=pages.post("/models/import/start", {"folder": str(allowed)})["Location"].split("/")[2])

    take = services.version_import

    def cancelled_after_this(*given: Any) -> Version:
        job_cancel(job=job, actor=actor)
        return take(*given)

    with monkeypatch.context() as patched:
        patched.setattr(services, "version_import", cancelled_after_this)
        job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, list(rows_of(job.result))) == ("cancelled", ["noop.mar"])
    page = pages.get(f"/jobs/{job.pk}/").content.decode()
    assert "Go on with the import" in page
    assert "noop.mar" in page
    pages.post(f"/jobs/{job.pk}/resume")
    again = Job.objects.latest("pk")
    assert again.pk != job.pk
    job_run(job_id=again.pk)
    again.refresh_from_db()
    assert (again.state, rows_of(again.result)) == ("succeeded", {"noop.mar": "there", "other.mar": "taken"})
    assert Version.objects.count() == 2
    assert "Import allowed" in pages.get("/jobs/").content.decode()


@pytest.mark.parametrize("told", [True, False])
def test_uploads_that_were_taken_keep_their_names_when_the_import_goes_on(
    api: APIClient, tmp_path: Path, received: Callable[..., Upload], told: bool
) -> None:
    """Its worker may be killed while the models load; in their versions all archives have one name.

    told: by the job, which those of an earlier release did not do."""
    uploads = [
        str(received({f"{one}.mar": archive(tmp_path / f"{one}.mar").read_bytes()}).pk) for one in ("one", "two")
    ]
    job = Job.objects.get(pk=api.post("/api/v1/imports", {"uploads": uploads}).json()["id"])
    if not told:
        del job.params["store"]["names"]
        job.save()
    job_run(job_id=job.pk)
    Job.objects.filter(pk=job.pk).update(state="queued")
    job_run(job_id=job.pk)
    again = api.post(f"/api/v1/imports/{job.pk}/resume").json()["id"]
    job_run(job_id=again)
    for row in Job.objects.filter(pk__in=(job.pk, again)):
        assert (row.state, rows_of(row.result)) == ("succeeded", {"one.mar": "there", "two.mar": "there"}), row.error


# -- an import ends when what it took has loaded -----------------------------------------------------------------------
@pytest.fixture
def loading(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], None]], None]:
    """A server that answers. loading(f): f(n) is called at the n-th look at what it has loaded."""
    ServerState.objects.update(checked_at=timezone.now())

    def at_each_look(act: Callable[[int], None]) -> None:
        looks = count()
        monkeypatch.setattr(services, "sleep", lambda seconds: act(next(looks)))

    return at_each_look


def started(api: APIClient, folder: Path) -> Job:
    return Job.objects.get(pk=api.post("/api/v1/imports", {"folder": str(folder)}).json()["id"])


def test_an_import_ends_when_what_it_took_has_loaded_and_says_what_did_not(
    api: APIClient, pages: Client, allowed: Path, server: Server, loading: Any
) -> None:
    archive(allowed / "broken.mar")
    seen: list[tuple[str, int, str]] = []

    def look(number: int) -> None:
        job = Job.objects.get()
        seen.append((job.state, job.progress, job.step))
        if number == 0:
            serve(Model.objects.get(name="noop"))
        if number == 2:
            release = newest_release(Model.objects.get(name="broken"))
            assert release is not None
            life.failed(release=release, server=server, error="the handler raised ImportError: no module named 'x'")

    loading(look)
    job = started(api, allowed)
    job_run(job_id=job.pk)
    assert seen[0] == ("running", 99, "Loading broken, 2 models of 2 to go")
    assert seen[-1] == ("running", 99, "Loading broken, 1 model of 2 to go")
    told = api.get(f"/api/v1/jobs/{job.pk}").json()
    assert (told["state"], told["error"]) == ("failed", "'broken' did not load; the report says why of each")
    loaded = {row["archive"]: (row["outcome"], row["loaded"]) for row in told["result"]["rows"]}
    assert loaded == {"noop.mar": ("taken", True), "broken.mar": ("taken", False)}
    assert (told["result"]["loaded"], told["result"]["not_loaded"]) == (1, 1)
    page = text_of(pages, f"/jobs/{job.pk}/")
    assert "Taken, serves" in page
    assert "Did not load" in page
    assert "It did not load: the handler raised ImportError" in page
    assert "noop: serves" in page


def test_an_import_that_is_cancelled_while_models_load_goes_on_with_that(
    api: APIClient, actor: Actor, allowed: Path, loading: Any
) -> None:
    job = started(api, allowed)
    loading(lambda number: job_cancel(job=job, actor=actor) and None)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, rows_of(job.result)) == ("cancelled", {"noop.mar": "taken"})
    again = Job.objects.get(pk=api.post(f"/api/v1/imports/{job.pk}/resume").json()["id"])
    loading(lambda number: serve(Model.objects.get()) and None)
    job_run(job_id=again.pk)
    again.refresh_from_db()
    row = again.result["rows"][0]
    assert (again.state, row["outcome"], row["loaded"]) == ("succeeded", "there", True)


@pytest.mark.parametrize("what", ["stopped", "silent", "deleted", "unloaded"])
def test_an_import_does_not_wait_for_what_nobody_loads(
    what: str, api: APIClient, allowed: Path, loading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def happens(number: int) -> None:
        assert number == 0
        match what:
            case "stopped":
                ServerState.objects.update(state="stopped", checked_at=None)
                monkeypatch.setattr(loads, "SILENCE", timedelta(0))
            case "silent":
                ServerState.objects.update(checked_at=timezone.now() - loads.SILENCE)
            case "deleted":
                Model.objects.all().delete()
            case "unloaded":
                Model.objects.update(desired_state=DesiredState.UNLOADED)

    loading(happens)
    job = started(api, allowed)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.result["rows"][0]["loaded"]) == ("succeeded", None)
    told = "it loads when the inference server runs" in job.result["rows"][0]["message"]
    assert told == (what in ("stopped", "silent"))


def test_one_import_is_one_line_of_the_last_changes(api: APIClient, pages: Client, allowed: Path) -> None:
    for name in ("other", "third"):
        archive(allowed / f"{name}.mar")
    job_run(job_id=started(api, allowed).pk)
    assert [row.text for row in changes()[:10]] == ["Imported 3 models from TorchServe: noop, other, third"]
    assert AuditEntry.objects.filter(part=True).count() > 3
    assert "Imported 3 models from TorchServe" in text_of(pages, "/activity/")
    assert [
        row.text for row in changes(model=Model.objects.get(name="other"))[:10]
    ]  # on its own page each step is told
    job_run(job_id=started(api, allowed).pk)
    assert len(changes()) == 1


def test_only_who_may_upload_code_imports(person: Callable[..., Any], allowed: Path) -> None:
    client, api = Client(), APIClient()
    somebody = person("operate", "upload_data")
    client.force_login(somebody)
    api.force_authenticate(somebody)
    assert api.post("/api/v1/imports", {"folder": str(allowed)}).status_code == 403
    assert api.get("/api/v1/imports/folders").status_code == 403
    assert client.get("/models/import").status_code == 403
    assert client.post("/models/import/start", {"folder": str(allowed)}).status_code == 403
    assert "Import a model store" not in client.get("/models/").content.decode()
