"""An upload is inspected by the real `python -m serving.inspect`, in a process of its own with limits."""

import io
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dashboard.access.authorisation import Actor
from dashboard.confinement import program
from dashboard.confinement.promises import Means, Promise, Protections, protections
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Upload, Version
from dashboard.shared.choices import JobState, UploadState
from dashboard.shared.exceptions import Invalid
from dashboard.uploads import inspection
from dashboard.uploads.inspector import run_inspector
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_cancel, upload_complete
from repository.config.document import Document
from repository.files import archive
from tests.dashboard.conftest import CONFIG, relu_bytes, version_from

pytestmark = pytest.mark.django_db
Inspected = Callable[..., Upload]

PYTHON_MODEL = b"""
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for name, data in files.items():
            with warnings.catch_warnings(action="ignore"):
                packed.writestr(name, data)
    return content.getvalue()


def test_an_onnx_file_proposes_a_configuration_that_can_be_published(inspected: Inspected, actor: Actor) -> None:
    upload = inspected({"Best Model (3).onnx": relu_bytes()})
    assert (upload.state, upload.error) == (UploadState.INSPECTED, "")
    proposal = upload.proposal
    assert (proposal["format"], proposal["executes_code"], proposal["problems"]) == ("onnx", False, [])
    assert proposal["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert upload.contents["files"] == ["model.onnx"]
    version = version_from(upload_publish(upload=upload, actor=actor, document=Document.read(proposal["config"])))
    assert (version.number, version.filename) == (1, "model.onnx")
    job = Job.objects.get(kind="inspect")
    assert (job.state, job.progress) == (JobState.SUCCEEDED, 100)
    assert "Best Model (3).onnx is stored as model.onnx" in job.log


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(relu_bytes()[:60], ""), (b"this is no model at all, but a text\n" * 20, "text")],
    ids=["truncated", "text"],
)
def test_a_file_that_is_no_model_says_so_in_one_sentence(inspected: Inspected, content: bytes, sentence: str) -> None:
    upload = inspected({"model.onnx": content})
    problems = [problem["message"] for problem in upload.proposal.get("problems", [])] or [upload.error]
    assert problems[0]
    assert sentence in problems[0]
    assert "Traceback" not in problems[0]
    assert "/" not in problems[0].replace("and/or", "")


def test_a_file_that_is_not_what_was_hashed_is_refused(received: Callable[..., Upload], actor: Actor) -> None:
    upload = received({"model.onnx": relu_bytes()})
    with (upload.folder / "files" / "0").open("r+b") as file:
        file.write(b"xx")
    job_run(job_id=upload_complete(upload=upload, actor=actor).pk)
    upload.refresh_from_db()
    assert upload.state == UploadState.FAILED
    assert "SHA-256 differs" in upload.error


def test_a_models_folder_brings_its_configuration_and_labels(inspected: Inspected, actor: Actor) -> None:
    text = CONFIG.replace("dims: [ 4 ] } ]\n", 'dims: [ 4 ] label_filename: "labels.txt" } ]\n').replace(
        'TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt"', "TYPE_FP32 dims: [ 4 ]", 1
    )
    files = {
        "relu/config.pbtxt": text.encode(),
        "relu/labels.txt": b"a\nb\nc\nd\n",
        "relu/7/model.onnx": relu_bytes(),
        "relu/.DS_Store": b"litter",
    }
    upload = inspected(files)
    assert upload.error == ""
    assert upload.proposal["config"] == text
    assert upload.proposal["config_source"] == "upload"
    version = version_from(upload_publish(upload=upload, actor=actor, document=Document.read(text)))
    folder = version.upload.folder.parent.parent / "models" / "relu"
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()) == [
        "1/model.onnx",
        "config.pbtxt",
        "labels.txt",
    ]


def test_a_text_with_a_line_for_each_class_is_the_label_file_and_needs_no_permission_to_upload_code(
    inspected: Inspected, person: Callable[..., Any]
) -> None:
    uploader = Actor(user=person("upload_data", "operate"))
    upload = inspected({"model.onnx": relu_bytes(), "names.txt": b"a\nb\nc\nd\n"}, by=uploader)
    assert (upload.state, upload.error) == (UploadState.INSPECTED, "")
    assert [finding["message"] for finding in upload.proposal["problems"]] == [
        "The file names.txt names the 4 classes of 'y'"
    ]
    version = version_from(
        upload_publish(upload=upload, actor=uploader, document=Document.read(upload.proposal["config"]))
    )
    folder = version.upload.folder.parent.parent / "models" / upload.model_name
    assert 'label_filename: "names.txt"' in (folder / "config.pbtxt").read_text()
    assert (folder / "names.txt").read_bytes() == b"a\nb\nc\nd\n"
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["model.onnx"]


def test_a_text_that_fits_no_output_stays_with_the_version(inspected: Inspected) -> None:
    upload = inspected({"model.onnx": relu_bytes(), "README.txt": b"trained on Monday\n"})
    assert upload.contents == {"files": ["README.txt", "model.onnx"], "model_files": {}}
    assert "label_filename" not in upload.proposal["config"]


def test_a_zip_of_a_model_is_unpacked(inspected: Inspected) -> None:
    upload = inspected({"relu.zip": zipped({"relu/1/model.onnx": relu_bytes(), "relu/config.pbtxt": CONFIG.encode()})})
    assert upload.error == ""
    assert upload.contents["files"] == ["model.onnx"]
    assert upload.proposal["config"] == CONFIG


@pytest.mark.parametrize("name", ["../evil.onnx", "/tmp/evil.onnx", "a/../../evil.onnx"])
def test_a_zip_that_would_leave_its_folder_is_refused(inspected: Inspected, name: str, data_folder: Path) -> None:
    upload = inspected({"relu.zip": zipped({name: relu_bytes()})})
    assert upload.state == UploadState.FAILED
    assert "not a plain relative file name" in upload.error
    assert not list(data_folder.rglob("evil.onnx"))


def test_a_zip_bomb_is_refused(inspected: Inspected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_SMALL", 1000)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("model.onnx", b"\0" * 2_000_000)
    upload = inspected({"relu.zip": content.getvalue()})
    assert upload.state == UploadState.FAILED
    assert "times its size" in upload.error


def test_a_zip_of_more_files_than_an_upload_may_have_is_refused(inspected: Inspected) -> None:
    upload = inspected({"relu.zip": zipped({f"1/{number}": b"" for number in range(10_001)})})
    assert (upload.state, upload.error) == (UploadState.FAILED, "the archive holds more than 10000 files")


def test_several_versions_at_once_are_refused(inspected: Inspected) -> None:
    upload = inspected({"1/model.onnx": relu_bytes(), "2/model.onnx": relu_bytes()})
    assert upload.error == "the upload holds the versions 1, 2; upload one version at a time"


def test_code_in_a_zip_needs_the_permission(inspected: Inspected, person: Callable[..., Any]) -> None:
    uploader = Actor(user=person("upload_data", "operate"))
    upload = inspected({"relu.zip": zipped({"1/model.py": PYTHON_MODEL})}, by=uploader)
    assert upload.state == UploadState.FAILED
    assert "can run code" in upload.error


def test_code_is_inspected_without_being_run(inspected: Inspected, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    upload = inspected({"model.py": PYTHON_MODEL + f"\nopen({str(trace)!r}, 'w')\n".encode()})
    assert (upload.error, upload.proposal["format"]) == ("", "python")
    assert upload.proposal["executes_code"] is True
    assert not trace.exists()


def test_an_ensemble_is_its_configuration_alone(inspected: Inspected, actor: Actor) -> None:
    text = """platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_STRING dims: [ 4 ] } ]
ensemble_scheduling { step [ { model_name: "relu" model_version: -1
  input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } ] }
"""
    upload = inspected({"config.pbtxt": text.encode()}, "pipeline")
    assert (upload.error, upload.proposal["format"]) == ("", "ensemble")
    assert upload.proposal["outputs"] == [{"name": "y", "datatype": "BYTES", "shape": [4]}]
    version = version_from(upload_publish(upload=upload, actor=actor, document=Document.read(text)))
    assert (version.size_bytes, version.format) == (0, "ensemble")


def test_nothing_but_a_configuration_is_no_model(inspected: Inspected) -> None:
    assert inspected({"config.pbtxt": CONFIG.encode()}).error == "the upload holds no model file"


def test_a_new_version_is_held_against_the_models_configuration(
    inspected: Inspected, published: Callable[..., Version]
) -> None:
    published()
    upload = inspected({"model.onnx": relu_bytes(output="z")})
    assert upload.state == UploadState.INSPECTED
    assert upload.proposal["config"] == CONFIG
    assert upload.proposal["config_source"] == "model"
    assert [problem["severity"] for problem in upload.proposal["problems"]] == ["warning"]
    assert "'y'" in upload.proposal["problems"][0]["message"]
    assert upload.proposal["outputs"][0]["name"] == "z"


def test_a_configuration_that_does_not_parse_is_shown_to_be_mended(inspected: Inspected) -> None:
    upload = inspected({"relu/1/model.onnx": relu_bytes(), "relu/config.pbtxt": b"max_batch: 3"})
    assert upload.state == UploadState.INSPECTED
    assert upload.proposal["config"] == "max_batch: 3"
    assert "unknown field 'max_batch'" in upload.proposal["problems"][0]["message"]


def test_cancelling_the_upload_ends_its_inspection(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = received({"model.onnx": relu_bytes()})
    job = upload_complete(upload=upload, actor=actor)

    def cancelled_meanwhile(*args: Any, context: Any, **more: Any) -> dict[str, Any]:
        upload_cancel(upload=upload, actor=actor)
        context.check_cancelled()
        raise AssertionError

    monkeypatch.setattr("dashboard.uploads.inspection.run_inspector", cancelled_meanwhile)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    upload.refresh_from_db()
    assert (job.state, upload.state) == (JobState.CANCELLED, UploadState.CANCELLED)
    assert not upload.folder.exists()


def test_a_worker_that_was_taken_for_lost_leaves_the_upload_to_the_next(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = received({"model.onnx": relu_bytes()})
    job = upload_complete(upload=upload, actor=actor)

    def superseded_meanwhile(*args: Any, context: Any, **more: Any) -> dict[str, Any]:
        Job.objects.filter(pk=job.pk).update(state=JobState.QUEUED, attempt=1)
        context.check_cancelled()
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(inspection, "run_inspector", superseded_meanwhile)
        job_run(job_id=job.pk)
    upload.refresh_from_db()
    assert (upload.state, upload.error) == (UploadState.INSPECTING, "")
    job_run(job_id=job.pk)
    upload.refresh_from_db()
    assert upload.state == UploadState.INSPECTED


def test_killed_when_all_is_recorded_the_inspection_gets_its_outcome(
    received: Callable[..., Upload], actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for a process that ends at this point."""

    def kill(*args: Any) -> None:
        raise Killed

    job = upload_complete(upload=received({"model.onnx": relu_bytes()}), actor=actor)
    with monkeypatch.context() as patch:
        patch.setattr(inspection, "_result", kill)
        with pytest.raises(Killed):
            job_run(job_id=job.pk)
    Job.objects.filter(pk=job.pk).update(state=JobState.QUEUED, attempt=1)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.result) == (JobState.SUCCEEDED, {"format": "onnx", "problems": 0})


# -- the limits of the process, with a stand-in for the inspection that misbehaves -----------------------------------


class Context:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def check_cancelled(self) -> None:
        pass

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(params=["this machine", "a machine without means"])
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspections give up the promises that a machine cannot keep."""
    if request.param != "this machine":
        monkeypatch.setattr(program, "protections", lambda: Protections(Means()))


def test_an_inspection_needs_no_means_of_the_machine(inspected: Inspected, machine: None) -> None:
    upload = inspected({"model.onnx": relu_bytes()})
    assert (upload.error, upload.proposal["format"]) == ("", "onnx")


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash"),
        ("import time; time.sleep(600)", "longer than 1 seconds"),
        ("x = bytearray(4 << 30)", "could not be inspected"),
        ("print('not JSON')", "no answer that can be read"),
        ("import sys; print('there is nothing here', file=sys.stderr); sys.exit(1)", "there is nothing here"),
        ("import os; assert 'SLIPWAY_SECRET_KEY' not in os.environ; print('[]')", "no answer"),
    ],
    ids=["crash", "hang", "memory", "nonsense", "refusal", "secrets"],
)
def test_an_inspection_that_misbehaves_is_one_sentence(
    body: str, sentence: str, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "stand-in" / "serving"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inspect.py").write_text(body)
    settings.BASE_DIR = package.parent
    settings.INSPECT_TIMEOUT = 1 if "sleep" in body else 60
    settings.INSPECT_MEMORY_BYTES = 1 << 30
    monkeypatch.setenv("SLIPWAY_SECRET_KEY", "secret")
    version = tmp_path / "version"
    version.mkdir()
    with pytest.raises(Invalid, match=sentence):
        run_inspector(version, name="x", config_file=None, context=Context())  # type: ignore[arg-type]


@pytest.mark.skipif(Promise.READS in protections().missing, reason="this machine cannot keep programs from files")
def test_an_inspection_does_not_read_the_secrets_beside_its_upload(tmp_path: Path, settings: Any) -> None:
    package = tmp_path / "stand-in" / "serving"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "data").mkdir()
    secret = package.parent / "data" / "secret"
    secret.write_text("secret")
    (package / "inspect.py").write_text(f"""
import os, sys
try:
    print(open({str(secret)!r}).read(), os.listdir({str(package.parent)!r}))
except PermissionError:
    sys.exit("the secret stays unread")
""")
    settings.BASE_DIR = package.parent
    version = tmp_path / "version"
    version.mkdir()
    with pytest.raises(Invalid, match="the secret stays unread"):
        run_inspector(version, name="x", config_file=None, context=Context())  # type: ignore[arg-type]
