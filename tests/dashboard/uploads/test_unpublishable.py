"""What cannot be published is refused early, with words that help, and looks like it; what is missing can be added."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Upload, Version
from dashboard.shared.exceptions import Conflict, Invalid, WrongState
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.services import upload_add_files, upload_complete, upload_create, upload_receive_chunk
from repository.config.document import Document
from repository.files.foreign_formats import FOREIGN_FORMATS
from tests.dashboard.conftest import relu_bytes, text_of, version_from
from tests.support.exported_models import FOLDER as EXPORTED

pytestmark = pytest.mark.django_db


def split_model() -> tuple[bytes, bytes]:
    """y = x + w, with w in `weights.data`: the model and the weights."""
    helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
    weight = helper.make_tensor("w", FLOAT, [2], [1.0, 2.0])
    weight.ClearField("float_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="weights.data")
    x, y = (helper.make_tensor_value_info(name, FLOAT, ["n", 2]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "graph", [x], [y], [weight])
    opsets = [helper.make_opsetid("", 17)]
    content = helper.make_model(graph, ir_version=9, opset_imports=opsets).SerializeToString()
    return content, onnx.numpy_helper.np.array([1, 2], "float32").tobytes()


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("model.safetensors", "optimum"),
        ("model.tflite", "tf2onnx"),
        ("model.gguf", "llama-cpp-python"),
        ("model.pmml", "skl2onnx"),
        ("model.rds", "from R"),
        ("graph.pb", "tf2onnx"),
    ],
)
def test_what_the_name_says_is_no_model_is_refused_before_it_is_sent(actor: Actor, path: str, remedy: str) -> None:
    with pytest.raises(Invalid, match=f"'{path}' cannot be served, because .*{remedy}"):
        upload_create(actor=actor, model_name="mine", files=[{"path": f"folder/{path}", "size": 10}])
    assert not Upload.objects.exists()


@pytest.mark.parametrize(
    "paths",
    [
        *(["model.pkl"], ["model.joblib"], ["model.ubj"], ["model.cbm"], ["model.h5"], ["saved_model.pb"]),
        *(["config.json", "model.safetensors"], ["net.py", "net.safetensors"], ["MLmodel", "model.skops"]),
    ],
)
def test_what_a_recipe_may_take_is_not_refused_by_its_name(actor: Actor, paths: list[str]) -> None:
    files = [{"path": f"folder/{path}", "size": 10} for path in paths]
    assert upload_create(actor=actor, model_name="mine", files=files).state == "receiving"


def test_beside_a_model_such_files_are_its_own(actor: Actor) -> None:
    files = [
        {"path": "1/model.py", "size": 10},
        {"path": "1/trees.ubj", "size": 10},
        {"path": "1/tokens.pkl", "size": 1},
    ]
    assert upload_create(actor=actor, model_name="mine", files=files).state == "receiving"


def test_every_kind_has_a_remedy_and_reads_as_one_sentence() -> None:
    for kind in FOREIGN_FORMATS:
        assert kind.remedy, kind.name
        assert kind.sentence[-1] not in ".!", kind.name
        assert kind.matter[0].islower() or kind.matter.startswith("a "), kind.name


@pytest.mark.parametrize(
    ("content", "format", "said"),
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "git_lfs_pointer",
            "run `git lfs pull`",
        ),
        (
            b"<!doctype html>\n<html><title>Sign in</title>",
            "web_page",
            "a web page that was saved in place of the file",
        ),
        (b"\xef\xbb\xbf<html>", "web_page", "download the file itself"),
    ],
)
def test_a_download_in_place_of_a_model_is_named_as_one(
    inspected: Callable[..., Upload], content: bytes, format: str, said: str
) -> None:
    upload = inspected({"model.onnx": content})
    assert (upload.state, upload.proposal["format"]) == ("failed", format)
    assert said in upload.error


@pytest.mark.parametrize("page", ["<!doctype html>\n<html><title>Sign in</title>", "\ufeff<html>"])
def test_a_web_page_in_place_of_a_configuration_is_named_as_one(
    inspected: Callable[..., Upload], api: APIClient, page: str
) -> None:
    upload = inspected({"m/config.pbtxt": page.encode(), "m/1/model.onnx": relu_bytes()})
    [problem] = upload.proposal["problems"]
    assert problem["message"].startswith("config.pbtxt: it is a web page that was saved in place of the file")
    answer = api.post(f"/api/v1/uploads/{upload.pk}/publish", {"config_text": page}, format="json")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the configuration is not valid: it is a web page that was saved")


def test_a_refused_file_fails_its_upload_and_its_job_and_shows_the_lines_that_help(
    inspected: Callable[..., Upload], actor: Actor, as_person: Callable[..., Client]
) -> None:
    upload = inspected({"model.json": b'{"learner":{"attributes":{}}}'})
    assert (upload.state, upload.proposal["format"]) == ("failed", "xgboost")
    assert "convert it by the recipe 'xgboost_model'" in upload.error
    assert Job.objects.get(kind="inspect").state == "failed"
    page = text_of(as_person("upload_data"), f"/uploads/{upload.pk}/")
    assert "from onnxmltools import convert_xgboost" in page
    assert "Cannot be published" in page
    for wrong in ('class="state ready"', "note ready", "publish-form", "config-text", "step done", "valid"):
        assert wrong not in page, wrong
    with pytest.raises(WrongState):
        upload_publish(upload=upload, actor=actor)


def test_missing_weights_are_added_and_the_model_is_published(
    inspected: Callable[..., Upload], actor: Actor, api: APIClient, client: Client
) -> None:
    content, weights = split_model()
    upload = inspected({"split.onnx": content})
    assert (upload.state, upload.proposal["missing"]) == ("failed", ["weights.data"])
    client.force_login(actor.user)
    assert "Add weights.data" in text_of(client, f"/uploads/{upload.pk}/")
    answer = api.post(
        f"/api/v1/uploads/{upload.pk}/files", {"files": [{"path": "weights.data", "size": len(weights)}]}, format="json"
    )
    assert (answer.status_code, answer.json()["state"]) == (201, "receiving")
    assert [file["number"] for file in answer.json()["files"]] == [0, 1]
    upload.refresh_from_db()
    upload_receive_chunk(upload=upload, number=1, offset=0, chunk=weights, actor=actor)
    job_run(job_id=upload_complete(upload=upload, actor=actor).pk)
    upload.refresh_from_db()
    assert (upload.state, upload.error) == ("inspected", "")
    version = version_from(upload_publish(upload=upload, actor=actor))
    assert version.details["files"] == ["model.onnx", "weights.data"]


def test_files_are_added_only_where_the_inspection_failed_and_under_new_names(
    inspected: Callable[..., Upload], actor: Actor
) -> None:
    sound = inspected()
    with pytest.raises(WrongState, match="takes no more files: it is ready to publish"):
        upload_add_files(upload=sound, actor=actor, files=[{"path": "a", "size": 1}])
    failed = inspected({"split.onnx": split_model()[0]}, model_name="other")
    with pytest.raises(Invalid, match="same name"):
        upload_add_files(upload=failed, actor=actor, files=[{"path": "split.onnx", "size": 1}])
    failed.refresh_from_db()
    assert (failed.state, failed.proposal["missing"]) == ("failed", ["weights.data"])


def test_a_folder_as_optimum_writes_it_is_published_whole(inspected: Callable[..., Upload], actor: Actor) -> None:
    beside = {"onnx/config.json": b"{}", "onnx/tokenizer.json": b"{}", "onnx/vocab.txt": b"a\nb\n"}
    upload = inspected({"onnx/model.onnx": relu_bytes(), **beside}, model_name="hf")
    assert (upload.state, upload.error) == ("inspected", "")
    version = version_from(upload_publish(upload=upload, actor=actor, load=False))
    assert version.details["files"] == ["config.json", "model.onnx", "tokenizer.json", "vocab.txt"]


# -- a name that a model has -------------------------------------------------------------------------------------------
def test_a_new_model_under_a_taken_name_is_refused_and_a_new_version_is_not(relu: Version, actor: Actor) -> None:
    files: list[dict[str, Any]] = [{"path": "model.onnx", "size": 1}]
    with pytest.raises(Conflict, match="a model 'relu' already: upload a new version of it, or take another name"):
        upload_create(actor=actor, model_name="relu", files=files, new_model=True)
    assert upload_create(actor=actor, model_name="relu", files=files).model_name == "relu"


def test_over_rest_a_taken_name_is_a_409(relu: Version, api: APIClient) -> None:
    asked = {"model_name": "relu", "files": [{"path": "model.onnx", "size": 1}], "new_model": True}
    assert api.post("/api/v1/uploads", asked, format="json").status_code == 409


def test_the_question_says_what_is_live_and_who_calls_it(
    relu: Version, inspected: Callable[..., Upload], actor: Actor, as_person: Callable[..., Client]
) -> None:
    maps = 'input_map { key: "x" value: "a" } output_map { key: "y" value: "b" }'
    steps = f'step [ {{ model_name: "relu" model_version: -1 {maps} }} ]'
    tensor = "data_type: TYPE_FP32 dims: [ 4 ]"
    tensors = f'input [ {{ name: "a" {tensor} }} ] output [ {{ name: "b" {tensor} }} ]'
    text = f'platform: "ensemble" max_batch_size: 8 {tensors} ensemble_scheduling {{ {steps} }}'
    upload = inspected({"config.pbtxt": text.encode()}, model_name="chain")
    version_from(upload_publish(upload=upload, actor=actor, load=False))
    person = as_person("upload_data")
    question = text_of(person, "/models/new/existing?name=relu")
    assert "There is a model relu already" in question
    assert "Version 1 is live" in question
    assert "The ensemble chain calls it." in question
    assert 'data-existing="relu_2"' in question
    page = text_of(person, "/models/new?model=relu")
    assert "New version of relu" in page
    assert "Version 1 is live" in page
    assert "The ensemble chain calls it." in page
    for free in ("free", "../escape", ""):
        assert person.get("/models/new/existing", {"name": free}).status_code == 204


def test_a_folder_that_nobody_manages_takes_its_name_too(
    actor: Actor, settings: Any, as_person: Callable[..., Client]
) -> None:
    (Path(settings.MODEL_REPOSITORY) / "found" / "1").mkdir(parents=True)
    assert "is not managed here" in text_of(as_person("upload_data"), "/models/new/existing?name=found")
    with pytest.raises(Conflict):
        upload_create(actor=actor, model_name="found", files=[{"path": "model.onnx", "size": 1}], new_model=True)


def test_after_a_refused_first_upload_the_page_still_begins_a_new_model(as_person: Callable[..., Client]) -> None:
    page = text_of(as_person("upload_data"), "/models/new?model=fresh")
    assert "New version of" not in page
    assert 'value="fresh"' in page


def test_a_sound_model_has_nothing_to_say(inspected: Callable[..., Upload]) -> None:
    assert inspected({"relu.onnx": relu_bytes()}).proposal["problems"] == []


# -- a batch of 1 ------------------------------------------------------------------------------------------------------
def test_a_model_exported_for_one_row_can_be_let_batch(
    inspected: Callable[..., Upload], actor: Actor, client: Client
) -> None:
    content = (EXPORTED / "torch_dynamo_fixed_batch" / "files" / "model.onnx").read_bytes()
    upload = inspected({"model.onnx": content}, model_name="one_row")
    client.force_login(actor.user)
    assert "Let it batch" in text_of(client, f"/uploads/{upload.pk}/")
    page = text_of(client, f"/uploads/{upload.pk}/?batching=on")
    assert "takes any number of rows" in page
    assert "slipway.variable_batch" in page
    version = version_from(
        upload_publish(upload=upload, actor=actor, document=Document.read(upload.proposal["batching_config"]))
    )
    assert version.number == 1
