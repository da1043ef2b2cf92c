"""A job converts the files of an upload by a recipe: into files that are inspected and published, or into a reason alone."""

import hashlib
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor, Right
from dashboard.confinement import program
from dashboard.confinement.promises import Means, Protections, protections
from dashboard.conversions.conversion import LOCKS
from dashboard.conversions.recipes.table import BY_NAME, Recipe
from dashboard.conversions.results import converted_models
from dashboard.environments.locks import read_lock
from dashboard.environments.making import environment
from dashboard.jobs.runner import job_run
from dashboard.models import AuditEntry, Job, Upload
from dashboard.shared.choices import JobState, UploadState
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, WrongState
from dashboard.uploads import conversion, inspector, offers
from dashboard.uploads.conversion import conversion_start
from dashboard.uploads.fetching import upload_fetch
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_cancel
from repository.config.document import Document
from tests.dashboard.conftest import text_of, version_from
from tests.dashboard.conversions.artefacts import dense_bytes

pytestmark = [pytest.mark.django_db, pytest.mark.long]
Inspected = Callable[..., Upload]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of the recipes for ONNX: all its packages are the product's, so that nothing is fetched."""
    root = tmp_path_factory.mktemp("environments")
    with environment(read_lock(LOCKS / "onnx.txt"), root, lambda percent, step: None):
        return root


@pytest.fixture(autouse=True)
def use_environments(environments: Path, settings: Any) -> None:
    settings.ENVIRONMENTS_DIR = environments


@pytest.fixture
def dense(inspected: Inspected) -> Upload:
    return inspected({"dense.onnx": dense_bytes()}, "dense")


def run(upload: Upload, actor: Actor, recipe: str = "onnx_fp16", **more: Any) -> Job:
    """Start a conversion, and run its job and then the inspections."""
    job = conversion_start(upload=upload, actor=actor, recipe=recipe, **more)
    return finish(job, upload)


def finish(job: Job, upload: Upload) -> Job:
    job_run(job_id=job.pk)
    for inspection in Job.objects.filter(kind="inspect", state=JobState.QUEUED):
        job_run(job_id=inspection.pk)
    upload.refresh_from_db()
    job.refresh_from_db()
    return job


# -- to a version ------------------------------------------------------------------------------------------------------
def test_converted_files_are_inspected_and_published_with_their_lineage(
    dense: Upload, actor: Actor, api: APIClient, client: Client
) -> None:
    assert [one["recipe"] for one in dense.conversion["offers"]] == ["onnx_int8", "onnx_fp16", "tensorrt_plan"]
    job = run(dense, actor)
    assert (job.state, job.error) == (JobState.SUCCEEDED, "")
    assert (dense.state, dense.error) == (UploadState.INSPECTED, "")
    assert [(file.number, file.path) for file in dense.files.all()] == [(1, "1/model.onnx")]
    assert [path.name for path in (dense.folder / "files").iterdir()] == ["1"]
    assert not (dense.folder / "conversion").exists()
    version = version_from(upload_publish(upload=dense, actor=actor, document=Document.read(dense.proposal["config"])))
    [lineage] = version.details["lineage"]
    digest = hashlib.sha256(dense_bytes()).hexdigest()
    assert lineage["source"] == [{"name": "dense.onnx", "sha256": digest, "bytes": len(dense_bytes())}]
    assert lineage["command"] == "python -m dashboard.conversions onnx_fp16 SOURCE TARGET"
    assert 0 < lineage["difference"]["mean"] <= lineage["difference"]["maximum"] < 0.02
    model = onnx.load(version.upload.folder.parent.parent / "models" / "dense" / "1" / "model.onnx")
    assert {one.data_type for one in model.graph.initializer if one.name.startswith("w")} == {onnx.TensorProto.FLOAT16}
    client.force_login(actor.user)
    page = text_of(client, "/models/dense/versions")
    for words in (digest[:16], "dense.onnx", lineage["command"], "onnxruntime"):
        assert words in page
    assert api.get("/api/v1/models/dense/versions/1").json()["details"]["lineage"] == [lineage]
    assert AuditEntry.objects.get(action="upload.convert").after["recipe"] == "onnx_fp16"


def test_lineage_and_version_name_the_source_of_fetched_files(
    actor: Actor, client: Client, unqueued: list[int], settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "dense.onnx").write_bytes(dense_bytes())
    settings.SOURCE_FOLDERS = [tmp_path.resolve()]
    place = {"kind": "folder", "address": str(tmp_path / "dense.onnx")}
    said = f"a folder: {tmp_path / 'dense.onnx'}"
    client.force_login(actor.user)
    for name, convert in (("plain", False), ("halved", True)):
        upload = upload_fetch(actor=actor, model_name=name, source=place)
        finish(Job.objects.get(kind="fetch", params__upload=str(upload.pk)), upload)
        if convert:
            run(upload, actor)
        document = Document.read(upload.proposal["config"])
        version = version_from(upload_publish(upload=upload, actor=actor, document=document))
        assert version.details["fetched_from"] == said
        assert [row["fetched_from"] for row in version.details.get("lineage", [])] == [said] * convert
        assert said in text_of(client, f"/models/{name}/versions")


def test_weights_in_a_file_beside_the_model_are_converted(inspected: Inspected, actor: Actor, tmp_path: Path) -> None:
    """The files of an upload are hard links, through which onnx reads no weights."""
    model = onnx.load_from_string(dense_bytes())
    onnx.save(model, tmp_path / "wide.onnx", save_as_external_data=True, location="wide.data", size_threshold=0)
    files = {name: (tmp_path / name).read_bytes() for name in ("wide.onnx", "wide.data")}
    upload = inspected(files, "wide")
    job = run(upload, actor)
    assert (job.state, job.error) == (JobState.SUCCEEDED, "")
    assert [file.path for file in upload.files.all()] == ["1/model.onnx"]


def test_a_refused_second_conversion_keeps_the_files_and_the_lineage_of_the_first(dense: Upload, actor: Actor) -> None:
    run(dense, actor)
    job = run(dense, actor)
    assert "the server's own runtime cannot run the converted model" in job.error  # it was in FP16 already
    assert [one["recipe"]["name"] for one in dense.conversion["lineage"]] == ["onnx_fp16"]
    assert version_from(upload_publish(upload=dense, actor=actor)).details["lineage"] == dense.conversion["lineage"]


def test_a_conversion_that_answers_otherwise_is_refused_with_both_numbers(
    inspected: Inspected, actor: Actor, client: Client
) -> None:
    upload = inspected({"large.onnx": dense_bytes(1e6)}, "large")
    before = upload.proposal
    job = run(upload, actor)
    assert job.state == JobState.FAILED
    words = (
        r"output 'y' differs from the source's by [\d.e+]+ at most and [\d.e+]+ on average.* is allowed: choose another"
    )
    assert re.match(words, job.error)
    assert (upload.state, upload.conversion["error"], upload.proposal) == (UploadState.INSPECTED, job.error, before)
    assert [file.path for file in upload.files.all()] == ["large.onnx"]
    client.force_login(actor.user)
    assert "<b>Nothing was converted.</b> Output" in text_of(client, f"/uploads/{upload.pk}/")
    assert version_from(upload_publish(upload=upload, actor=actor)).details.get("lineage") is None


# -- what it needs -----------------------------------------------------------------------------------------------------
class Harm:
    """An object whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("echo harm",)


@pytest.fixture
def harmful(inspected: Inspected) -> Upload:
    return inspected({"model.pkl": pickle.dumps({"model": Harm()})}, "harmful")


def test_a_pickle_is_offered_a_recipe_with_a_report_of_its_imports(
    harmful: Upload, actor: Actor, client: Client, api: APIClient
) -> None:
    assert (harmful.state, harmful.proposal["format"]) == (UploadState.FAILED, "pickle")
    assert harmful.error.endswith(
        "so it is not loaded: convert it by the recipe 'scikit_learn', which is offered for this upload"
    )
    client.force_login(actor.user)
    page = text_of(client, f"/uploads/{harmful.pk}/")
    assert "<b>The pickle imports what can do harm</b>: posix.system." in page
    assert "Its packages are fetched first" in page
    found = api.get(f"/api/v1/uploads/{harmful.pk}/conversions").json()
    [offer] = found["recipes"]
    assert (offer["recipe"], offer["loads_code"], offer["refusal"]) == ("scikit_learn", True, "")
    assert (offer["environment"], offer["environment_ready"]) == ("tabular", False)
    assert [one["name"] for one in offer["options"]] == ["opset", "datatype"]
    assert found["imports"] == {"names": ["posix.system"], "dangerous": ["posix.system"], "unread": []}


def test_code_is_run_only_for_who_may_upload_it_and_has_confirmed_it(
    harmful: Upload, person: Callable[..., Any], as_person: Callable[..., Client], actor: Actor
) -> None:
    with pytest.raises(
        Conflict, match="'scikit_learn' runs code of the files: look at what they import, then confirm it"
    ):
        conversion_start(upload=harmful, actor=actor, recipe="scikit_learn")
    actor.user.user_permissions.clear()  # type: ignore[union-attr]
    for codename in ("upload_data", "operate"):
        from django.contrib.auth.models import Permission

        actor.user.user_permissions.add(Permission.objects.get(codename=codename))  # type: ignore[union-attr]
    lesser = Actor(user=type(actor.user).objects.get(pk=actor.user.pk))  # type: ignore[union-attr]
    with pytest.raises(Forbidden, match="which needs the permission to upload formats that can run code"):
        conversion_start(upload=harmful, actor=lesser, recipe="scikit_learn", run_code=True)
    client = Client()
    client.force_login(lesser.user)
    page = text_of(client, f"/uploads/{harmful.pk}/")
    assert "It runs code of the files, which needs the permission to upload formats that can run code." in page
    assert not Job.objects.filter(kind="convert").exists()


def test_a_recipe_that_makes_code_needs_the_right_to_upload_it(
    dense: Upload, actor: Actor, monkeypatch: pytest.MonkeyPatch, api: APIClient
) -> None:
    """Otherwise the work would be done, and its result refused by the inspection."""
    monkeypatch.setattr(offers, "has_gpu", lambda: True)
    assert [one.name for one in BY_NAME.values() if one.makes_code] == ["huggingface", "tensorrt_plan"]
    monkeypatch.setattr(Actor, "may", lambda self, right: right is not Right.UPLOAD_CODE)
    sentence = "makes files that can run code, which needs the permission to upload formats that can run code"
    with pytest.raises(Forbidden, match=f"'tensorrt_plan' {sentence}"):
        conversion_start(upload=dense, actor=actor, recipe="tensorrt_plan")
    found = api.get(f"/api/v1/uploads/{dense.pk}/conversions").json()["recipes"]
    assert [one["refusal"] for one in found] == ["", "", f"It {sentence}"]


def test_a_machine_that_cannot_confine_says_what_is_missing_and_asks(
    dense: Upload, actor: Actor, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = protections().means
    kept = {name: getattr(full, name) for name in Means.__dataclass_fields__}
    weaker = Protections(Means(**{**kept, "landlock": 0}))
    monkeypatch.setattr(offers, "protections", lambda: weaker)
    monkeypatch.setattr(program, "protections", lambda: weaker)
    client.force_login(actor.user)
    page = text_of(client, f"/uploads/{dense.pk}/")
    assert "is not kept to “cannot read other files”, which needs Landlock in the kernel" in page
    with pytest.raises(Conflict, match=r"cannot read other files: needs Landlock .*: confirm with unprotected"):
        conversion_start(upload=dense, actor=actor, recipe="onnx_fp16")
    job = run(dense, actor, unprotected=True)
    assert (job.state, job.error) == (JobState.SUCCEEDED, "")
    assert AuditEntry.objects.get(action="upload.convert").after["given_up"] == [str(one) for one in weaker.missing]


def test_a_recipe_for_a_gpu_says_that_it_needs_one(
    dense: Upload, actor: Actor, client: Client, api: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "has_gpu", lambda: False)
    client.force_login(actor.user)
    sentence = "It needs a machine with an NVIDIA GPU, and this one shows none"
    assert f"{sentence}." in text_of(client, f"/uploads/{dense.pk}/")
    found = api.get(f"/api/v1/uploads/{dense.pk}/conversions").json()["recipes"]
    assert [one["refusal"] for one in found] == ["", "", sentence]
    answer = api.post(f"/api/v1/uploads/{dense.pk}/conversions", {"recipe": "tensorrt_plan"}, format="json")
    assert answer.status_code == 409
    assert answer.json()["error"] == f"'tensorrt_plan' n{sentence[4:]}"
    monkeypatch.setattr(offers, "has_gpu", lambda: True)
    found = api.get(f"/api/v1/uploads/{dense.pk}/conversions").json()["recipes"]
    assert [one["refusal"] for one in found] == ["", "", ""]
    assert sentence not in text_of(client, f"/uploads/{dense.pk}/")


@pytest.mark.parametrize("needs_gpu", [False, True])
def test_only_a_recipe_for_a_gpu_is_given_the_devices_of_one(
    dense: Upload, actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_gpu: bool
) -> None:
    """A device that every machine has stands for that of a GPU."""
    monkeypatch.setattr(conversion, "nvidia_devices", lambda: [Path("/dev/ptmx")])
    monkeypatch.setattr(offers, "has_gpu", lambda: True)
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "program.py").write_text("import os\nos.open('/dev/ptmx', os.O_RDWR)\nprint('opened')")
    monkeypatch.setattr(Recipe, "program", property(lambda self: recipe / "program.py"))
    monkeypatch.setattr(conversion, "PROGRAMS", recipe)
    monkeypatch.setitem(conversion.BY_NAME, "onnx_fp16", replace(BY_NAME["onnx_fp16"], needs_gpu=needs_gpu))
    job = run(dense, actor)
    assert ("opened" in job.log, "Permission denied" in job.error) == (needs_gpu, not needs_gpu)


def test_a_wrong_request_says_what_is_right(dense: Upload, api: APIClient, client: Client, actor: Actor) -> None:
    at = f"/api/v1/uploads/{dense.pk}/conversions"
    for body, words in (
        ({"recipe": "scikit_learn"}, "its recipes are onnx_int8, onnx_fp16, tensorrt_plan"),
        ({"recipe": "onnx_int8", "options": {"weights": "INT3"}}, "'weights' must be one of INT8, UINT8, not 'INT3'"),
        ({"recipe": "onnx_int8", "options": {"x": 1}}, "'x' is no option of the recipe 'onnx_int8'"),
    ):
        answer = api.post(at, body, format="json")
        assert (answer.status_code, words in answer.json()["error"]) == (400, True), answer.json()
    client.force_login(actor.user)
    answer = client.post(f"/uploads/{dense.pk}/convert", {"recipe": "onnx_int8", "inputs": "{x", "weights": "UINT8"})
    page = re.sub(r"\s+", " ", answer.content.decode())
    assert answer.status_code == 400
    assert "The conversion did not begin: &#x27;inputs&#x27; must be JSON" in page
    assert 'value="{x"' in page
    assert '<option value="UINT8" selected>' in page


def test_somebody_elses_upload_is_not_converted(dense: Upload, person: Callable[..., Any]) -> None:
    other = Actor(user=person("upload_data", "upload_code"))
    with pytest.raises(Forbidden, match="belongs to somebody else"):
        conversion_start(upload=dense, actor=other, recipe="onnx_fp16")


# -- each state --------------------------------------------------------------------------------------------------------
def test_page_and_rest_show_a_conversion_that_waits_runs_and_is_cancelled(
    dense: Upload, actor: Actor, client: Client, api: APIClient
) -> None:
    client.force_login(actor.user)
    path, at = f"/uploads/{dense.pk}/", f"/api/v1/uploads/{dense.pk}"
    assert client.post(f"{path}convert", {"recipe": "onnx_fp16"})["Location"] == path
    job = Job.objects.get(kind="convert")
    assert "Waiting for a worker. The conversion starts by itself." in text_of(client, path)
    assert api.get(at).json()["state"] == "converting"
    Job.objects.filter(pk=job.pk).update(state="running", step="Making the environment", progress=3, log="a line")
    page = text_of(client, path)
    for words in ("<span>Making the environment</span>", "3 %", "a line", "Cancel the conversion"):
        assert words in page
    with pytest.raises(WrongState, match="cannot be published: it is converting"):
        upload_publish(upload=dense, actor=actor)
    Job.objects.filter(pk=job.pk).update(state="queued")
    client.post(f"/jobs/{job.pk}/cancel")
    assert "<b>Nothing was converted.</b> The conversion was cancelled." in text_of(client, path)
    assert api.get(at).json()["state"] == "inspected"
    assert api.get(f"{at}/conversions").json()["error"] == "The conversion was cancelled."


def test_an_upload_that_is_cancelled_ends_its_conversion(dense: Upload, actor: Actor) -> None:
    job = conversion_start(upload=dense, actor=actor, recipe="onnx_fp16")
    upload_cancel(upload=dense, actor=actor)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert job.state == JobState.CANCELLED
    assert not dense.folder.exists()


# -- programs that mean harm -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = bytearray(100 << 30)", "MemoryError (it may take 1 GiB of memory"),
        ("x = []\nwhile True: x.append(bytes(1 << 20))", "it may take 1 GiB of memory"),
        ("import os\nwhile True: os.fork()", "it may have 64 processes"),
        ("while True: pass", "it may take "),
        ("open('/tmp/outside', 'w')", "it may read what it was given, and write its own folder alone"),
        ("import socket; socket.create_connection(('127.0.0.1', 80))", "it may open no connection"),
        ("while True: print('x' * 1000)", "it may print "),
        ("import os; os.kill(os.getpid(), 9)", "the program was killed"),
        ("open('/etc/passwd').read(); open('/root/.profile').read()", "it may read what it was given"),
    ],
    ids=["memory at once", "memory slowly", "forks", "loops", "writes outside", "socket", "prints", "dies", "reads"],
)
def test_a_program_that_means_harm_is_ended_with_one_sentence(
    dense: Upload, actor: Actor, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    settings.INSPECT_MEMORY_BYTES = 1 << 30
    settings.INSPECT_TIMEOUT = 3 if code.startswith("while True: pass") else 600  # the others end for their own reasons
    monkeypatch.setattr(inspector, "_MAX_PROCESSES", 64)
    hostile = tmp_path / "recipe"
    hostile.mkdir()
    (hostile / "program.py").write_text(code)
    monkeypatch.setattr(Recipe, "program", property(lambda self: hostile / "program.py"))
    monkeypatch.setattr(conversion, "PROGRAMS", hostile)
    job = run(dense, actor)
    assert job.state == JobState.FAILED
    assert words in job.error
    assert "\n" not in job.error
    assert (dense.state, dense.conversion["error"]) == (UploadState.INSPECTED, job.error)
    assert not Path("/tmp/outside").exists()


def test_a_link_in_the_result_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    model = tmp_path / "target" / "model"
    model.mkdir(parents=True)
    (model / "model.onnx").symlink_to(tmp_path / "secret")
    [found] = converted_models(tmp_path / "target", {}, "mine")
    assert found.version == {}
    with pytest.raises(Invalid):
        converted_models(tmp_path / "target", {"ensemble": {"step": "../../secret"}}, "mine")
