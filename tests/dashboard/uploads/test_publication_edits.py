"""Publishing and configurations: who may change one that way, and no edit is lost when several people are at it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.drift import drift_check
from dashboard.configuration.services import config_apply
from dashboard.jobs.runner import job_run
from dashboard.models import Job, Model, Server, Upload, Version
from dashboard.releases.selectors import current_document, wanted_versions
from dashboard.shared.exceptions import Forbidden
from dashboard.uploads import publication
from dashboard.uploads.publication import publications_recover, upload_publish
from dashboard.versions.services import release_go_back
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes, serve, text_of, version_from

pytestmark = pytest.mark.django_db
Received = Callable[..., Upload]
Inspected = Callable[..., Upload]

EDITED = CONFIG + "instance_group [ { count: 2 } ]\n"
MINE = CONFIG + "dynamic_batching { max_queue_delay_microseconds: 7 }\n"


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


@pytest.fixture
def uploader(person: Callable[..., Any]) -> Actor:
    return Actor(user=person("upload_data", name="una"))


def rest(actor: Actor) -> APIClient:
    client = APIClient()
    client.force_authenticate(actor.user)
    return client


def on_disk(data_folder: Path) -> str:
    return Document.read((data_folder / "models" / "relu" / "config.pbtxt").read_text()).text


# -- who may change a configuration by publishing ----------------------------------------------------------------------


def test_a_new_version_under_the_same_configuration_takes_the_right_to_upload_alone(
    model: Model, inspected: Inspected, uploader: Actor, data_folder: Path
) -> None:
    for asked in (True, False):
        upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
        before = wanted_versions(model)
        document = model.releases.first().document if asked else None
        version_from(upload_publish(upload=upload, actor=uploader, document=document, load=False))
        assert wanted_versions(model) == before == [1]


def test_a_new_model_takes_the_right_to_upload_alone(inspected: Inspected, uploader: Actor) -> None:
    upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
    version_from(upload_publish(upload=upload, actor=uploader, document=Document.read(EDITED), load=False))
    assert Model.objects.get().desired_state == "unloaded"


def test_another_configuration_takes_the_right_to_operate(
    model: Model, inspected: Inspected, uploader: Actor, data_folder: Path
) -> None:
    upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
    with pytest.raises(Forbidden, match="configure models: it changes the configuration of 'relu'"):
        upload_publish(upload=upload, actor=uploader, document=Document.read(EDITED), load=False)
    body = {"config_text": EDITED, "load": False, "make_live": False}
    answer = rest(uploader).post(f"/api/v1/uploads/{upload.pk}/publish", body, format="json")
    assert answer.status_code == 403, answer.content
    browser = Client()
    browser.force_login(uploader.user)
    page = browser.post(f"/uploads/{upload.pk}/publish", {"text": EDITED, "after": "keep"})
    assert page.status_code == 400
    assert "It changes the configuration of" in page.content.decode().replace("it changes", "It changes")
    assert on_disk(data_folder) == CONFIG
    assert (model.releases.count(), model.versions.count()) == (1, 1)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({"config.pbtxt": EDITED.encode()}, "changes the configuration"),
        ({"labels.txt": b"other\n"}, "'labels.txt' next to the versions"),
        ({"configs/mine.pbtxt": EDITED.encode()}, "'configs/mine.pbtxt' next to the versions"),
        ({"1/slipway.pbtxt": b"instance_group [ { count: 3 } ]"}, "its slipway.pbtxt changes the configuration"),
    ],
    ids=["a configuration", "labels", "a custom configuration", "an overlay"],
)
def test_files_that_change_how_a_model_is_served_take_the_right_to_operate(
    files: dict[str, bytes], what: str, inspected: Inspected, actor: Actor, uploader: Actor, data_folder: Path
) -> None:
    text = CONFIG.rstrip("} ]\n") + ' ] label_filename: "labels.txt" } ]\n'
    first = {"config.pbtxt": text.encode(), "labels.txt": b"a\n", "1/model.onnx": relu_bytes()}
    version_from(upload_publish(upload=inspected(first), actor=actor))
    upload = inspected({"1/model.onnx": relu_bytes(), **files}, by=uploader)
    with pytest.raises(Forbidden, match=what):
        upload_publish(upload=upload, actor=uploader, load=False)
    same = inspected({"1/model.onnx": relu_bytes(), "labels.txt": b"a\n", "config.pbtxt": text.encode()}, by=uploader)
    version_from(upload_publish(upload=same, actor=uploader, load=False))
    assert (data_folder / "models" / "relu" / "labels.txt").read_bytes() == b"a\n"


def test_a_version_that_the_policy_names_in_advance_is_served_only_by_those_who_may(
    model: Model, inspected: Inspected, actor: Actor, uploader: Actor
) -> None:
    text = CONFIG + "version_policy { specific { versions: [ 2 ] } }\n"
    config_apply(model=model, document=Document.read(text), actor=actor)
    assert wanted_versions(model) == []
    upload = inspected({"model.onnx": relu_bytes()}, by=uploader)
    with pytest.raises(Forbidden, match="'relu' is loaded or made live by it"):
        upload_publish(upload=upload, actor=uploader, load=False)


# -- edits that meet ---------------------------------------------------------------------------------------------------


def test_a_text_made_from_an_older_configuration_is_refused_and_nothing_is_lost(
    model: Model, inspected: Inspected, actor: Actor, api: APIClient, data_folder: Path
) -> None:
    upload = inspected({"model.onnx": relu_bytes()})
    assert upload.proposal["base_release"] == 1
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    for body in ({"config_text": MINE}, {"config_text": CONFIG}, {"config_text": CONFIG, "base_release": 1}):
        answer = api.post(f"/api/v1/uploads/{upload.pk}/publish", body, format="json")
        assert (answer.status_code, "to release 2" in answer.json()["error"]) == (409, True), body
    assert on_disk(data_folder) == EDITED
    answer = api.post(f"/api/v1/uploads/{upload.pk}/publish", {"config_text": MINE, "base_release": 2}, format="json")
    assert answer.status_code == 201
    assert on_disk(data_folder) == MINE


def test_without_a_text_of_its_own_a_version_comes_under_the_configuration_of_now(
    model: Model, inspected: Inspected, actor: Actor, api: APIClient, data_folder: Path
) -> None:
    upload = inspected({"model.onnx": relu_bytes()})
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    assert api.post(f"/api/v1/uploads/{upload.pk}/publish", {"make_live": False}).status_code == 201
    assert on_disk(data_folder) == EDITED
    assert model.releases.count() == 3


def test_a_configuration_that_comes_with_the_files_is_held_against_the_one_of_the_inspection(
    model: Model, inspected: Inspected, actor: Actor, api: APIClient, data_folder: Path
) -> None:
    upload = inspected({"config.pbtxt": MINE.encode(), "1/model.onnx": relu_bytes()})
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    assert api.post(f"/api/v1/uploads/{upload.pk}/publish", {}).status_code == 409
    assert on_disk(data_folder) == EDITED


def test_what_a_killed_publication_did_not_write_is_written_when_it_is_finished(
    model: Model, inspected: Inspected, actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    upload = inspected({"model.onnx": relu_bytes()})

    class Killed(BaseException):
        """Stands for a process that ends between the rename and what is written beside it."""

    def half(repository: Any, staged: Any, *, name: str, **more: Any) -> None:
        staged.folder.rename(repository.version_dir(name, 2))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(publication.publish, "place_version", half)
        with pytest.raises(Killed):
            upload_publish(upload=upload, actor=actor, load=False)
    Job.objects.filter(kind="publish").update(state="cancelled")
    assert publications_recover() == ["Finished the publication of version 2 of relu."]
    assert "versions: [1]" in on_disk(data_folder)
    assert (drift_check(), wanted_versions(model)) == ([], [1])


def test_an_edit_before_a_killed_publication_is_finished_is_not_written_over(
    model: Model, inspected: Inspected, actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    def killed(*given: Any) -> None:
        raise KeyboardInterrupt

    upload = inspected({"model.onnx": relu_bytes()})
    with monkeypatch.context() as patch:
        patch.setattr(publication, "_record", killed)  # when the version and its text are in place
        with pytest.raises(KeyboardInterrupt):
            upload_publish(upload=upload, actor=actor, make_live=True)
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    Job.objects.filter(kind="publish").update(state="cancelled")
    assert publications_recover() == ["Finished the publication of version 2 of relu."]
    newest = model.releases.first()
    assert (newest.kind, newest.versions) == ("publish", [2])
    assert EDITED.splitlines()[-1] in on_disk(data_folder)
    assert (Document.read(newest.text).text, drift_check()) == (on_disk(data_folder), [])


def test_the_page_shows_what_came_meanwhile(model: Model, inspected: Inspected, actor: Actor, server: Server) -> None:
    upload = inspected({"model.onnx": relu_bytes()})
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    browser = Client()
    browser.force_login(actor.user)
    page = text_of(browser, f"/uploads/{upload.pk}/")
    assert "instance_group [ { count: 2 } ]" in page
    sent = {"text": MINE, "base_release": "1", "after": "live"}
    refused = browser.post(f"/uploads/{upload.pk}/publish", sent)
    said = refused.content.decode()
    assert refused.status_code == 400
    assert "Release 2 came meanwhile" in said
    assert "max_queue_delay_microseconds: 7" in said
    assert 'name="base_release" value="2"' in said
    again = browser.post(f"/uploads/{upload.pk}/publish", {**sent, "base_release": "2"})
    assert again.status_code == 302
    assert model.releases.first().number > 2


def test_an_edit_between_the_decision_and_the_rename_is_not_written_over(
    model: Model, received: Received, actor: Actor, monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    upload = as_inspected(received({"model.onnx": relu_bytes()}))
    put, edits = publication._put, [EDITED]

    def edited_before(*given: Any) -> Any:
        if edits:
            config_apply(model=model, document=Document.read(edits.pop()), actor=actor)
        return put(*given)

    monkeypatch.setattr(publication, "_put", edited_before)
    job = upload_publish(upload=upload, actor=actor, document=Document.read(MINE))
    assert (job.state, job.result) == ("failed", {"status": 409})
    assert on_disk(data_folder) == EDITED
    edits.append(MINE)
    again = version_from(upload_publish(upload=upload, actor=actor))
    assert (again.number, on_disk(data_folder)) == (3, MINE)


# -- going back to an earlier release ----------------------------------------------------------------------------------


def test_going_back_makes_nothing_live_that_never_was(
    model: Model, published: Callable[..., Version], actor: Actor, api: APIClient
) -> None:
    serve(model)
    published(load=False)
    published(load=False, make_live=True)
    assert wanted_versions(model) == [3]
    api.post("/api/v1/models/relu/releases/1/go_back")
    assert wanted_versions(model) == [1]
    text = model.releases.first().text
    assert text.startswith(CONFIG.splitlines()[0])
    assert "versions: [1]" in text


def test_all_versions_means_all_that_were_served(model: Model, published: Callable[..., Version], actor: Actor) -> None:
    config_apply(model=model, document=Document.read(CONFIG + "version_policy { all { } }"), actor=actor)
    second = serve(model)
    other = CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")
    config_apply(
        model=model, document=Document.read(other + "version_policy { specific { versions: [ 1 ] } }"), actor=actor
    )
    published(load=False, config_text=model.releases.first().text)
    release_go_back(model=model, release=second, actor=actor)
    assert wanted_versions(model) == [1]
    assert "max_batch_size: 8" in current_document(model).text


def test_a_large_upload_says_so_too(model: Model, received: Received, actor: Actor, settings: Any) -> None:
    settings.AT_ONCE_BYTES = 0
    upload = as_inspected(received({"model.onnx": relu_bytes()}), base_release=1)
    job = upload_publish(upload=upload, actor=actor, document=Document.read(MINE))
    config_apply(model=model, document=Document.read(EDITED), actor=actor)
    job_run(job_id=job.pk)
    job = Job.objects.get(pk=job.pk)
    assert (job.state, job.result) == ("failed", {"status": 409})
    assert "was changed while version 2 was being published" in job.error
