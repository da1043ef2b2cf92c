"""Whether a model runs code is decided from what would be executed, and then it takes the permission to upload code.

Each attack is tried by somebody who may upload data and operate, but not upload code; what lies in the repository afterwards
is given to a real inference server, and what the attack would write must not be there.
"""

import io
import pickle
import py_compile
import re
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.drift import drift_adopt, drift_check
from dashboard.configuration.services import config_apply
from dashboard.jobs.runner import job_run
from dashboard.models import Model, Server, Upload, Version
from dashboard.shared.exceptions import Conflict, DashboardError, Forbidden
from dashboard.uploads.publication import upload_publish
from dashboard.versions.moves import version_archive, version_restore
from dashboard.versions.services import release_go_back
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, relu_bytes, serve, text_of, version_from
from tests.support import model_factory
from tests.support.exported_models import FOLDER as EXPORTED
from tests.support.serving_process import ServerProcess, wait_until

pytestmark = pytest.mark.django_db
Inspected = Callable[..., Upload]

TENSORS = CONFIG.partition("max_batch_size")[2].partition("\n")[2]
PYTHON = f'backend: "python"\ndefault_model_filename: "%s"\nmax_batch_size: 8\n{TENSORS}'
ENVIRONMENT = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "$$TRITON_MODEL_DIRECTORY/env.tar.gz" } }\n'

POLICY = "version_policy { specific { versions: [ 1 ] } }\n"


def source(marker: Path) -> str:
    return f"""open({str(marker)!r}, "w").close()


class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def compiled(marker: Path) -> bytes:
    path = marker.with_name("payload.py")
    path.write_text(source(marker))
    return Path(py_compile.compile(str(path), doraise=True) or "").read_bytes()


def environment(marker: Path) -> bytes:
    script = f"#!/bin/sh\ntouch '{marker}'\n".encode()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as packed:
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(script), 0o755
        packed.addfile(entry, io.BytesIO(script))
    return content.getvalue()


def zipped(marker: Path) -> bytes:
    content = io.BytesIO(b"{}")
    with zipfile.ZipFile(content, "a") as archive:
        archive.writestr("__main__.py", source(marker))
    return content.getvalue()


def torchscript() -> bytes:
    import torch

    class Relu(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    content = io.BytesIO()
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(Relu()), content)
    return content.getvalue()


def onnx_with_external_weights(folder: Path) -> tuple[bytes, bytes]:
    """y = x + b, FP32 [4], with b in a file `weights` of its own."""
    import numpy as np
    import onnx

    node = model_factory.helper.make_node("Add", ["x", "b"], ["y"])
    shapes = ([("x", "FP32", [4])], [("y", "FP32", [4])])
    content = model_factory.onnx_bytes([node], *shapes, weights={"b": np.ones(4, np.float32)})
    model = onnx.load_model_from_string(content)
    onnx.save_model(model, str(folder / "model.onnx"), save_as_external_data=True, location="weights", size_threshold=0)
    return (folder / "model.onnx").read_bytes(), (folder / "weights").read_bytes()


# name -> (the files beside 1/model.onnx, the configuration that would run them)
Attack = tuple[dict[str, bytes], str]
ATTACKS: dict[str, Callable[[Path], Attack]] = {
    "a compiled module": lambda marker: ({"1/payload.pyc": compiled(marker)}, PYTHON % "payload.pyc"),
    "source under another name": lambda marker: ({"1/notes.txt": source(marker).encode()}, PYTHON % "notes.txt"),
    "a module in a folder": lambda marker: ({"1/a/b.bin": compiled(marker)}, PYTHON % "a/b.bin"),
    "the model file itself": lambda marker: ({}, PYTHON % "model.onnx"),
    "a packed environment": lambda marker: ({"env.tar.gz": environment(marker)}, PYTHON % "model.onnx" + ENVIRONMENT),
    "an environment under another name": lambda marker: (
        {"1/weights.bin": environment(marker)},
        PYTHON % "model.onnx" + ENVIRONMENT.replace("env.tar.gz", "1/weights.bin"),
    ),
    "TorchScript as weights": lambda marker: (
        {"1/weights.bin": torchscript()},
        f'platform: "pytorch_libtorch"\ndefault_model_filename: "weights.bin"\nmax_batch_size: 8\n{TENSORS}',
    ),
    "a backend of its own": lambda marker: (
        {"1/libtriton_mine.bin": b"\x7fELF" + bytes(60)},
        CONFIG.replace("onnxruntime", "mine"),
    ),
    "a custom operator library": lambda marker: (
        {"ops.bin": b"\x7fELF" + bytes(60)},
        CONFIG + 'model_operations { op_library_filename: "ops.bin" }\n',
    ),
    "an overlay of one version": lambda marker: (
        {"1/payload.bin": compiled(marker), "1/slipway.pbtxt": b'default_model_filename: "payload.bin"\n'},
        f'platform: "pytorch_libtorch"\nmax_batch_size: 8\n{TENSORS}',
    ),
    "a custom configuration": lambda marker: (
        {"1/payload.pyc": compiled(marker), "configs/mine.pbtxt": (PYTHON % "payload.pyc").encode()},
        CONFIG,
    ),
    "TensorRT engines inside ONNX": lambda marker: (
        {},
        CONFIG + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n',
    ),
}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    folder = tmp_path / "attack"
    folder.mkdir()
    return folder / "it ran"


@pytest.fixture
def uploader(person: Callable[..., Any]) -> Actor:
    return Actor(user=person("upload_data", "operate", name="una"))


@pytest.mark.parametrize("name", ATTACKS)
def test_what_would_run_code_is_not_uploaded_and_published_without_the_permission(
    name: str, inspected: Inspected, uploader: Actor, marker: Path, data_folder: Path
) -> None:
    extra, text = ATTACKS[name](marker)

    def attack() -> None:
        upload = inspected({"1/model.onnx": relu_bytes(), **extra}, by=uploader)
        upload_publish(upload=upload, actor=uploader, document=Document.read(text))

    with pytest.raises(DashboardError):
        attack()
    assert not Model.objects.exists()
    assert list((data_folder / "models").iterdir()) == []
    assert not marker.exists()


@pytest.mark.parametrize("name", ATTACKS)
def test_publishing_code_needs_the_permission_at_that_time(
    name: str, inspected: Inspected, person: Callable[..., Any], marker: Path, data_folder: Path
) -> None:
    """The person had the permission when they uploaded the files, and has lost it since."""
    user = person("upload_data", "upload_code", "operate", name="una")
    extra, text = ATTACKS[name](marker)
    upload = inspected({"1/model.onnx": relu_bytes(), **extra}, by=Actor(user=user))
    assert upload.state == "inspected", upload.error
    user.user_permissions.remove(Permission.objects.get(codename="upload_code"))
    user = type(user).objects.get(pk=user.pk)
    with pytest.raises(Forbidden, match="permission to upload formats that can run code"):
        upload_publish(upload=upload, actor=Actor(user=user), document=Document.read(text))
    client = APIClient()
    client.force_authenticate(user)
    answer = client.post(f"/api/v1/uploads/{upload.pk}/publish", {"config_text": text}, format="json")
    assert answer.status_code == 403, answer.content
    browser = Client()
    browser.force_login(user)
    page = browser.post(f"/uploads/{upload.pk}/publish", {"text": text, "after": "live"})
    assert page.status_code == 400
    assert "This needs the permission to upload formats that can run code" in page.content.decode()
    assert not Model.objects.exists()
    assert list((data_folder / "models").iterdir()) == []


def test_the_attacks_are_real(inspected: Inspected, actor: Actor, tmp_path: Path, data_folder: Path) -> None:
    """With the permission, the code runs in the server, which shows that the refusals above are needed."""
    markers = {}
    for name in ("a compiled module", "a packed environment", "a custom configuration"):
        markers[name] = tmp_path / name.replace(" ", "_") / "it ran"
        markers[name].parent.mkdir()
        extra, text = ATTACKS[name](markers[name])
        # What is known to be ONNX is refused as Python; the same attack with a file that nobody has looked into is not.
        text = text.replace('default_model_filename: "model.onnx"', 'default_model_filename: "notes.txt"')
        upload = inspected(
            {"1/model.onnx": relu_bytes(), "1/notes.txt": b"nothing", **extra}, markers[name].parent.name
        )
        version_from(upload_publish(upload=upload, actor=actor, document=Document.read(text)))
    with ServerProcess(data_folder / "models", "--model-config-name=mine", "--exit-on-error=false", wait="live"):
        wait_until(lambda: all(marker.exists() for marker in markers.values()))


# -- what may be published without it ----------------------------------------------------------------------------------


def test_an_onnx_model_with_the_weights_and_files_that_are_named_is_data(
    inspected: Inspected, uploader: Actor, tmp_path: Path
) -> None:
    model, weights = onnx_with_external_weights(tmp_path)
    text = (
        CONFIG.replace("TYPE_FP32 dims: [ 4 ] } ]\n", 'TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]\n', 2)
        .replace('TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt"', "TYPE_FP32 dims: [ 4 ]", 1)
        .replace("max_batch_size: 8", "max_batch_size: 0")
    )
    files = {"config.pbtxt": text.encode(), "labels.txt": b"a\nb\nc\nd\n", "1/model.onnx": model, "1/weights": weights}
    upload = inspected(files, by=uploader)
    assert (upload.error, upload.proposal["names"]) == ("", ["weights"])
    version = version_from(upload_publish(upload=upload, actor=uploader))
    assert version.details["runs_code"] == []


OPTIMUM = {
    "config.json": b'{"architectures": ["BertForSequenceClassification"], "id2label": {"0": "NEGATIVE"}}',
    "tokenizer.json": b'{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"[PAD]": 0, "import": 1}}}',
    "tokenizer_config.json": b"{}",
    "special_tokens_map.json": b'{"unk_token": "[UNK]"}',
    "vocab.txt": b"[PAD]\n[UNK]\nimport\n",
    "README.md": b"# A model\n\n    import transformers\n",
}


def published_over_rest(upload: Upload, who: Actor) -> Any:
    client = APIClient()
    client.force_authenticate(who.user)
    return client.post(f"/api/v1/uploads/{upload.pk}/publish", {"load": False}, format="json")


@pytest.mark.parametrize("folder", ["", "1/", "1/onnx/"])
def test_what_optimum_writes_beside_a_model_is_data_for_whoever_may_upload_data_only(
    folder: str, inspected: Inspected, person: Callable[..., Any], data_folder: Path
) -> None:
    una = Actor(user=person("upload_data", name="una"))
    files = {f"{folder}{name}": content for name, content in OPTIMUM.items()}
    upload = inspected({"1/model.onnx": (EXPORTED / "hf_bert/files/model.onnx").read_bytes(), **files}, "bert", by=una)
    assert upload.error == ""
    answer = published_over_rest(upload, una)
    assert answer.status_code in (200, 201, 202), answer.content
    placed = data_folder / "models" / "bert" / f"{folder}vocab.txt"
    assert placed.read_bytes() == OPTIMUM["vocab.txt"]


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1]),
        pickle.dumps(print, 0),
        environment,
        zipped,
        b"\x7fELF" + bytes(60),
        b"import os\nos.abort()\n",
    ],
)
def test_what_only_has_the_name_of_data_needs_the_permission(
    content: Any, inspected: Inspected, person: Callable[..., Any], marker: Path
) -> None:
    una = person("upload_data", "upload_code", name="una")
    hostile = content(marker) if callable(content) else content
    files = {**OPTIMUM, "tokenizer.json": hostile}
    upload = inspected(
        {"1/model.onnx": relu_bytes(), **{f"1/{name}": one for name, one in files.items()}}, by=Actor(user=una)
    )
    una.user_permissions.remove(Permission.objects.get(codename="upload_code"))
    answer = published_over_rest(upload, Actor(user=type(una).objects.get(pk=una.pk)))
    assert (answer.status_code, "tokenizer.json" in answer.content.decode()) == (403, True)


def test_beside_a_model_that_runs_code_nothing_is_data_by_what_it_holds(
    inspected: Inspected, actor: Actor, uploader: Actor
) -> None:
    """A handler may do with its files what it likes: a new one takes the same permission as the handler."""
    handler = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    first = inspected({"1/model.py": handler, "config.pbtxt": (PYTHON % "model.py").encode()})
    version_from(upload_publish(upload=first, actor=actor, load=False))
    text = "".join(line for line in (PYTHON % "").splitlines(True) if not line.startswith(("backend", "default")))
    upload = inspected({"2/model.onnx": relu_bytes(), "settings.json": b"{}"}, by=uploader)
    with pytest.raises(Forbidden, match=r"settings\.json"):
        upload_publish(upload=upload, actor=uploader, document=Document.read(text), load=False)


@pytest.mark.parametrize("name", ["1/notes.md", "1/more.bin", "vocabulary.txt", "01/model.onnx"])
def test_a_file_that_nothing_names_needs_the_permission(name: str, inspected: Inspected, uploader: Actor) -> None:
    upload = inspected({"1/model.onnx": relu_bytes(), name: b"\0\0\0\0\0\0"}, by=uploader)
    with pytest.raises(Forbidden, match=f"'{name.removeprefix('1/')}'"):
        upload_publish(upload=upload, actor=uploader)


def test_the_page_says_which_permission_is_missing_and_because_of_what(
    inspected: Inspected, uploader: Actor, server: Server
) -> None:
    upload = inspected({"1/model.onnx": relu_bytes(), "1/more.bin": b"0"}, by=uploader)
    browser = Client()
    browser.force_login(uploader.user)
    page = text_of(browser, f"/uploads/{upload.pk}/")
    assert (
        "This needs the permission to upload formats that can run code: &#x27;more.bin&#x27; of version 1 can run code"
        in page
    )
    assert re.search(r'<button[^>]* id="publish"[^>]* disabled', page)
    answer = browser.post(f"/uploads/{upload.pk}/preview", {"text": PYTHON % "x"}, content_type="application/json")
    assert "backend 'python' runs 'x' of version 1" in answer.json()["refused"]


def test_a_person_with_the_permission_reads_that_it_runs_code(
    inspected: Inspected, actor: Actor, server: Server
) -> None:
    upload = inspected({"model.py": b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"})
    browser = Client()
    browser.force_login(actor.user)
    page = text_of(browser, f"/uploads/{upload.pk}/")
    assert "backend &#x27;python&#x27; runs &#x27;model.py&#x27; of version 1 as code" in page
    assert 'id="publish" disabled' not in page


# -- a configuration that would run what lies there already ------------------------------------------------------------


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


RUNNING = {
    "python": PYTHON % "model.onnx",
    "another platform": CONFIG.replace('backend: "onnxruntime"', 'platform: "pytorch_libtorch"'),
    "an unknown backend": CONFIG.replace("onnxruntime", "mine"),
    "TensorRT": CONFIG + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }',
    "an environment": CONFIG + ENVIRONMENT,
    "an environment in other letters": CONFIG + ENVIRONMENT.replace("EXECUTION_ENV_PATH", "Execution_Env_Path"),
    "a library": CONFIG + 'model_operations { op_library_filename: "1/model.onnx" }',
    "none that is known": CONFIG.replace('backend: "onnxruntime"', 'default_model_filename: "other"'),
}


@pytest.mark.parametrize("name", RUNNING)
def test_a_configuration_that_would_run_code_needs_the_permission(name: str, model: Model, uploader: Actor) -> None:
    with pytest.raises(Forbidden, match="permission to upload formats that can run code"):
        config_apply(model=model, document=Document.read(RUNNING[name]), actor=uploader)
    client = APIClient()
    client.force_authenticate(uploader.user)
    answer = client.put("/api/v1/models/relu/config", {"text": RUNNING[name]}, format="json")
    assert answer.status_code == 403, answer.content
    preview = client.post("/api/v1/models/relu/config/preview", {"text": RUNNING[name]}, format="json").json()
    assert {need["right"] for need in preview["needs"]} == {"upload_code"}
    browser = Client()
    browser.force_login(uploader.user)
    assert browser.post("/models/relu/configuration", {"text": RUNNING[name]}).status_code == 403
    assert model.releases.count() == 1


def test_what_runs_already_is_configured_without_the_permission(
    model: Model, actor: Actor, uploader: Actor, inspected: Inspected
) -> None:
    text = PYTHON % "model.py"
    upload = inspected({"model.py": b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"})
    version_from(upload_publish(upload=upload, actor=actor, document=Document.read(text)))
    serve(model)
    config_apply(model=model, document=Document.read(text + "instance_group [ { count: 2 } ]\n"), actor=uploader)
    serve(model)
    with pytest.raises(Forbidden, match=r"other\.py"):
        config_apply(model=model, document=Document.read(PYTHON % "other.py"), actor=uploader)
    config_apply(model=model, document=Document.read(CONFIG + POLICY), actor=uploader)
    for number in (2, 3):
        with pytest.raises(Forbidden, match=r"backend 'python' runs 'model\.py'"):
            release_go_back(model=model, release=model.releases.get(number=number), actor=uploader)
    release_go_back(model=model, release=model.releases.get(number=2), actor=actor)


def test_a_version_comes_back_from_the_archive_as_what_it_was_published_as(
    model: Model, published: Callable[..., Version], actor: Actor, uploader: Actor, person: Callable[..., Any]
) -> None:
    second = published(load=False)
    version_archive(version=second, actor=uploader)
    second.refresh_from_db()
    config_apply(model=model, document=Document.read(PYTHON % "model.onnx" + POLICY), actor=actor)
    with pytest.raises(Forbidden, match=r"backend 'python' runs 'model\.onnx' of version 2"):
        version_restore(version=second, actor=uploader)
    second.refresh_from_db()
    assert second.state == "archived"
    version_restore(version=second, actor=actor)
    second.refresh_from_db()
    assert second.state == "published"


def test_code_that_was_published_by_right_is_archived_and_restored_without_it(
    actor: Actor, uploader: Actor, inspected: Inspected
) -> None:
    source = b"class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    text = PYTHON % "model.py" + POLICY
    first, second = (
        version_from(
            upload_publish(
                upload=inspected({"model.py": source}), actor=actor, document=Document.read(text), load=False
            )
        )
        for _ in range(2)
    )
    assert first.details["runs_code"] == ["backend 'python' runs 'model.py' of version 1 as code"]
    version_archive(version=second, actor=uploader)
    second.refresh_from_db()
    assert second.state == "archived"
    version_restore(version=second, actor=uploader)
    second.refresh_from_db()
    assert second.state == "published"


def test_adopting_what_was_changed_by_hand_takes_both_rights(
    model: Model, actor: Actor, uploader: Actor, person: Callable[..., Any], data_folder: Path
) -> None:
    (data_folder / "models" / "relu" / "config.pbtxt").write_text(PYTHON % "model.onnx")
    drift_check()
    with pytest.raises(Forbidden, match="upload formats that can run code"):
        drift_adopt(model=model, actor=uploader)
    with pytest.raises(Forbidden, match="configure models"):
        drift_adopt(model=model, actor=Actor(user=person("upload_data", "upload_code")))
    drift_adopt(model=model, actor=actor)


def test_a_folder_that_is_not_managed_is_not_published_into(
    inspected: Inspected, uploader: Actor, data_folder: Path
) -> None:
    (data_folder / "models" / "relu" / "1").mkdir(parents=True)
    upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
    with pytest.raises(Conflict, match="adopt it first"):
        upload_publish(upload=upload, actor=uploader)


def test_what_was_decided_is_decided_again_when_the_files_are_ready(
    model: Model, inspected: Inspected, uploader: Actor, actor: Actor, settings: Any
) -> None:
    """The configuration was made one that runs code while a large upload of data waited for a worker."""
    upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
    settings.AT_ONCE_BYTES = 0
    job = upload_publish(upload=upload, actor=uploader, load=False)
    config_apply(model=model, document=Document.read(PYTHON % "model.onnx"), actor=actor)
    job_run(job_id=job.pk)
    job.refresh_from_db()
    assert (job.state, job.result) == ("failed", {"status": 403})
    assert "backend 'python' runs 'model.onnx' of version 2 as code" in job.error
    assert model.versions.count() == 1
