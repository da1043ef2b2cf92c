"""`manage.py import_torchserve`: a set-up becomes models, once, however often it is run and wherever it is broken off."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import javaproperties
import pytest
from django.core.management import CommandError, call_command

from dashboard.imports import publishing, services
from dashboard.models import AuditEntry, Job, Model, Release, Upload, Version
from dashboard.releases.selectors import current_document, newest_release
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import DesiredState, JobState
from repository.config import model_config, version_policy
from tests.support.torchserve_archives import archive, war

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database of the tests lies in memory, and is migrated."""
    for name in ("check_database", "migrate"):
        monkeypatch.setattr(f"dashboard.imports.management.commands.import_torchserve.{name}", lambda: False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two versions of one model with other settings, and an archive that nobody can read."""
    folder = tmp_path / "old" / "model_store"
    archive(folder / "noop.mar", "noop", version="1.0")
    archive(folder / "noop2.mar", "noop", version="2.0", config={"batchSize": 8, "maxBatchDelay": 20})
    return folder


def write_config(store: Path, **properties: object) -> Path:
    path = store.parent / "config.properties"
    models = {
        "noop": {
            "1.0": {
                "defaultVersion": True,
                "marName": "noop.mar",
                "batchSize": 4,
                "maxBatchDelay": 50,
                "responseTimeout": 30,
            }
        }
    }
    values = {"model_store": "model_store", "models": json.dumps(models), "load_models": "all", "vmargs": "-Xmx4g"}
    path.write_text(javaproperties.dumps({**values, **{key: str(value) for key, value in properties.items()}}))
    return path


def run(*arguments: object) -> str:
    out = StringIO()
    call_command("import_torchserve", *map(str, arguments), stdout=out)
    return out.getvalue()


def labels(model: Model) -> dict[str, int]:
    return {publishing.label_of(version): version.number for version in model.versions.all()}


def test_versions_settings_and_the_default_are_taken_over_once(store: Path) -> None:
    config = write_config(store, default_workers_per_model=2)

    said = run(config, "--dry-run")
    assert "noop 2.0 (noop2.mar): would be taken as version 2" in said
    assert not Model.objects.exists()

    said = run(config)
    assert (
        "noop 1.0 (noop.mar): taken as version 1: batches of 4 within 50 ms, 2 workers, 30 s to answer, the default"
        in said
    )
    assert "vmargs has no meaning on this server" in said
    model = Model.objects.get()
    assert labels(model) == {"1.0": 1, "2.0": 2}
    text = current_document(model).text
    parsed = model_config.parse(text)
    assert (parsed.backend, parsed.max_batch_size) == ("torchserve", 4)
    assert parsed.dynamic_batching.max_queue_delay_microseconds == 50_000
    assert parsed.dynamic_batching.default_queue_policy.max_queue_size == 100
    assert [group.count for group in parsed.instance_group] == [2]
    newest = newest_release(model)
    assert newest is not None
    assert (newest.versions, newest.aliases) == ([1, 2], {"default": 1})
    assert model.desired_state == DesiredState.LOADED
    folder = managed_repository().model_dir("noop")
    other = model_config.read(folder, 2)  # what its archive says is its own, and nothing else is the other version's
    assert (other.max_batch_size, other.parameters["torchserve.response_timeout_s"].string_value) == (8, "120")
    assert parsed.parameters["torchserve.response_timeout_s"].string_value == "30"
    assert version_policy.describe(parsed) == "all versions"
    entry = AuditEntry.objects.get(action="model.import")
    assert entry.after["versions"] == {"1.0": 1, "2.0": 2}

    releases = Release.objects.count()
    assert "0 taken, 2 there already" in run(config)
    assert (Version.objects.count(), Release.objects.count()) == (2, releases)
    archive(store / "noop.mar", "noop", version="1.0", handler="def handle(data, context): return ['changed']")
    with pytest.raises(CommandError, match=r"1 of 2 archives could not be taken over"):
        run(config)
    assert (Version.objects.count(), Release.objects.count()) == (2, releases)
    assert AuditEntry.objects.filter(action="model.import").count() == 1


def test_an_import_that_was_killed_anywhere_goes_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the first archive is inspected, when it is published, and before what is published is served."""

    class Killed(BaseException):
        """Nothing that the program may catch: as SIGKILL, it runs nothing but what the kernel lets go."""

    config = write_config(store)
    places: list[tuple[Any, str]] = [
        (publishing, "inspection_run"),
        (publishing, "publication_run"),
        (services, "config_apply"),
    ]
    for module, name in places:

        def die(*_: object, **__: object) -> None:
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(module, name, die)
            with pytest.raises(Killed):
                run(config)

    assert "2 there already" in run(config)
    model = Model.objects.get()
    newest = newest_release(model)
    assert newest is not None
    assert (newest.versions, newest.aliases) == ([1, 2], {"default": 1})
    assert (model.versions.count(), Upload.objects.count()) == (2, 2)
    assert AuditEntry.objects.filter(action="version.publish").count() == 2


def test_an_archive_that_cannot_be_taken_over_is_reported_and_disturbs_no_other(store: Path) -> None:
    (store / "broken.mar").write_bytes(b"no archive")
    archive(store / "again.mar", "noop", version="1.0", handler="def handle(data, context): return []")
    with pytest.raises(CommandError, match=r"2 of 4 archives could not be taken over") as failure:
        run("--model-store", store)
    assert failure.value.returncode == 1
    job = Job.objects.get()
    assert job.state == JobState.FAILED
    report: Any = job.result
    assert {row["archive"]: row["message"] for row in report["rows"] if row["outcome"] == "failed"} == {
        "broken.mar": "'broken.mar' is no model archive: expected a zip or a tar file",
        "noop.mar": "version 1.0 of 'noop' is in again.mar already; give one of them another version "
        "(torch-model-archiver --version)",
    }
    assert report["notes"] == []
    assert labels(Model.objects.get()) == {"1.0": 1, "2.0": 2}

    archive(store / "broken.mar", "noop", version="3.0")  # mended: it comes beside what is served by now
    with pytest.raises(CommandError, match=r"1 of 4"):
        run("--model-store", store)
    model = Model.objects.get()
    assert labels(model) == {"1.0": 1, "2.0": 2, "3.0": 3}
    newest = newest_release(model)
    assert newest is not None
    assert newest.versions == [1, 2]

    with pytest.raises(CommandError) as usage:
        run()
    assert usage.value.returncode == 2


def test_the_last_snapshot_says_what_is_registered(store: Path) -> None:
    said = {"defaultVersion": True, "marName": "noop2.mar", "minWorkers": 3, "maxWorkers": 3, "batchSize": 2}
    snapshot = {
        "name": "s",
        "modelCount": 1,
        "models": {"mine": {"2.0": {**said, "maxBatchDelay": 10, "responseTimeout": 9}}},
    }
    logs = store.parent / "logs" / "config"
    logs.mkdir(parents=True)
    text = javaproperties.dumps({"model_snapshot": json.dumps(snapshot)})
    (logs / "20261122120000000-shutdown.cfg").write_text(text)
    said_by = run(write_config(store))
    assert "from the snapshot 20261122120000000-shutdown.cfg" in said_by
    mine = Model.objects.get(name="mine")
    config = model_config.parse(current_document(mine).text)
    assert (config.max_batch_size, config.instance_group[0].count) == (2, 3)
    assert config.parameters["torchserve.response_timeout_s"].string_value == "9"
    other = Model.objects.get(name="noop")  # in the store, and not registered
    assert (mine.desired_state, other.desired_state) == (DesiredState.LOADED, DesiredState.UNLOADED)


def test_a_workflow_becomes_an_ensemble_of_its_nodes_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = "models: {batch-size: 2, max-batch-delay: 5, one: {url: noop.mar}}\ndag: {pre: [one], one: [post]}\n"
    war(store / "flow.war", "flow", spec)
    war(store / "lost.war", "lost", "models: {one: {url: lost.mar}}\ndag: {pre: [one]}\n")
    (store / "none.war").write_bytes(b"no zip file")
    said = {"lost.war": "its node 'one' needs lost.mar, which is not there", "none.war": "is no workflow archive"}

    with pytest.raises(CommandError, match=r"2 of 8 archives"):
        run("--model-store", store, "--dry-run")
    assert not Model.objects.exists()

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(services.workflows, "ensemble_import", die)
        with pytest.raises(KeyboardInterrupt):
            run("--model-store", store)
    for _ in range(2):  # gone on with, then as it is
        with pytest.raises(CommandError, match=r"2 of 8 archives could not be taken over"):
            run("--model-store", store)
    report: Any = Job.objects.latest("pk").result
    failures = {row["archive"]: row["message"] for row in report["rows"] if row["outcome"] == "failed"}
    assert failures.keys() == said.keys()
    assert all(reason in failures[name] for name, reason in said.items())

    models = {model.name: model for model in Model.objects.all()}
    assert models.keys() == {"noop", "flow", "flow__pre", "flow__one", "flow__post"}
    assert all(model.desired_state == DesiredState.LOADED for model in models.values())
    assert [model.versions.count() for model in models.values() if model.name != "noop"] == [1] * 4
    ensemble = model_config.parse(current_document(models["flow"]).text)
    assert [step.model_name for step in ensemble.ensemble_scheduling.step] == ["flow__pre", "flow__one", "flow__post"]
    node = model_config.parse(current_document(models["flow__one"]).text)
    assert (node.max_batch_size, [tensor.name for tensor in node.input]) == (2, ["body"])

    war(store / "flow.war", "flow", spec, functions="def pre(data, context): return data\n")
    with pytest.raises(CommandError, match=r"3 of 8"):
        run("--model-store", store)
    assert "from another archive" in Job.objects.latest("pk").log
