"""Each version keeps the configuration that fits it; making one live shows what changes for clients, and offers that text."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.callers import Caller, _troubles
from dashboard.configuration.services import config_apply
from dashboard.examples.services import example_create
from dashboard.models import Example, Model, Upload, Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.releases.example_fit import misfit
from dashboard.releases.selectors import current_document, fitting_document, newest_release
from dashboard.shared.exceptions import Invalid
from dashboard.uploads.publication import upload_publish
from dashboard.versions.promotion import promotion
from dashboard.versions.services import release_promote
from repository.config import model_config
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes, serve, text_of, version_from

pytestmark = pytest.mark.django_db

WIDER = CONFIG.replace("dims: [ 4 ]", "dims: [ 6 ]")


def tensors(**names: int) -> list[dict[str, Any]]:
    return [{"name": name, "datatype": "FP32", "shape": [-1, width]} for name, width in names.items()]


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    """Release 1 serves version 1."""
    model = published(load=True).model
    serve(model)
    return model


@pytest.fixture
def wider(model: Model, received: Callable[..., Upload], actor: Actor) -> Version:
    """Version 2, of which the inspection said that the model's configuration does not fit it."""
    upload = as_inspected(
        received({"model.onnx": relu_bytes(6)}),
        inputs=tensors(x=6),
        outputs=tensors(p=6),
        config=CONFIG,
        config_source="model",
        fitting=WIDER,
        base_release=1,
    )
    return version_from(upload_publish(upload=upload, actor=actor, load=False))


def test_a_version_keeps_the_text_that_was_proposed_for_it(model: Model, wider: Version) -> None:
    assert wider.config == WIDER
    assert Version.objects.get(number=1).config == CONFIG


def test_what_changes_for_clients_is_said_in_sentences(model: Model, wider: Version) -> None:
    assert promotion(wider).changes == [
        "input 'x' is FP32 [-1, 6], where it was FP32 [-1, 4]",
        "output 'y' is gone: requests that ask for it are refused",
        "output 'p' is new, FP32 [-1, 6]: answers have it, too",
    ]
    assert promotion(Version.objects.get(number=1)).changes == []


def test_going_back_to_other_tensors_says_which_clients_break(
    model: Model, wider: Version, actor: Actor, api: APIClient, as_person: Callable[..., Client]
) -> None:
    release_promote(version=wider, document=Document.read(WIDER.replace('"y"', '"p"')), actor=actor)
    serve(model)
    page = text_of(as_person("operate"), "/models/relu/releases/1/")
    assert "<b>Clients break.</b> What they send to version 2 today is refused by release 1" in page
    assert "Input &#x27;x&#x27; is FP32 [-1, 4], where it was FP32 [-1, 6]." in page
    assert '<th scope="col">Version 2, which answers now</th><th scope="col">Release 1</th>' in page
    assert "Clients break: it has no output &#x27;p&#x27;, its input &#x27;x&#x27; has shape" in text_of(
        as_person("operate"), "/models/relu/releases/"
    )
    shown = api.get("/api/v1/models/relu/releases/1/go_back").json()
    assert len(shown["changes"]) == 3
    assert shown["refused"] == ["it has no output 'p'", "its input 'x' has shape [-1, 4], where it was [-1, 6]"]


def test_going_back_to_another_configuration_of_the_same_version_says_it_too(
    model: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    config_apply(model=model, document=Document.read(CONFIG.replace('name: "y"', 'name: "z"')), actor=actor)
    serve(model)
    page = text_of(as_person("operate"), "/models/relu/releases/1/")
    assert "Output &#x27;z&#x27; is gone: requests that ask for it are refused." in page


def test_going_back_to_the_same_tensors_says_that_nothing_changes(
    model: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    config_apply(
        model=model, document=Document.read(CONFIG.replace("max_batch_size: 8", "max_batch_size: 4")), actor=actor
    )
    serve(model)
    assert "Nothing changes in what requests send" in text_of(as_person("operate"), "/models/relu/releases/1/")


def test_making_live_does_not_promise_that_no_request_fails_where_clients_break(
    model: Model, wider: Version, published: Callable[..., Version], as_person: Callable[..., Client]
) -> None:
    page = text_of(as_person("operate"), f"/models/relu/versions/{wider.number}/live")
    assert "Requests as clients send them now are refused from then on." in page
    assert "No request fails." not in page
    same = published(load=False)
    assert "No request fails." in text_of(as_person("operate"), f"/models/relu/versions/{same.number}/live")


def test_making_live_says_nothing_of_clients_whom_nothing_answers(
    published: Callable[..., Version], as_person: Callable[..., Client]
) -> None:
    version = published(load=False)
    page = text_of(as_person("operate"), f"/models/relu/versions/{version.number}/live")
    assert "Nothing answers them now." in page


def test_making_live_offers_the_text_that_fits(model: Model, wider: Version, actor: Actor, api: APIClient) -> None:
    found = promotion(wider)
    assert found.preferred == "fitting"
    assert "dims: [ 6 ]" in found.fitting.document.text
    assert '+output [ { name: "y" data_type: TYPE_FP32 dims: [ 6 ] } ]' in found.fitting.diff
    shown = api.get("/api/v1/models/relu/versions/2/make_live").json()
    assert (shown["preferred"], len(shown["changes"]), shown["fitting"]["effect"]) == ("fitting", 3, "reload")
    body = {"text": shown["fitting"]["text"]}
    assert api.post("/api/v1/models/relu/versions/2/make_live", body, format="json").status_code == 200
    newest = newest_release(model)
    assert (newest.versions, "dims: [ 6 ]" in newest.text) == ([2], True)


def test_a_configuration_that_contradicts_the_file_does_not_make_it_live(
    model: Model, wider: Version, actor: Actor, api: APIClient
) -> None:
    tensors = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 6]}]}
    outputs = {"outputs": [{"name": "p", "datatype": "FP32", "shape": [-1, 6]}]}
    wider.details = {**wider.details, "signature": {**tensors, **outputs}}
    wider.save()
    with pytest.raises(Invalid, match="make version 2 live with the configuration that fits it"):
        release_promote(version=wider, actor=actor)
    assert not promotion(wider).present.valid
    assert api.post("/api/v1/models/relu/versions/2/make_live").status_code == 400
    assert newest_release(model).versions == [1]


def test_the_text_with_which_a_version_served_last_fits_it(model: Model, wider: Version, actor: Actor) -> None:
    better = CONFIG.replace("max_batch_size: 8", "max_batch_size: 2")
    release_promote(version=Version.objects.get(number=1), document=Document.read(better), actor=actor)
    serve(model)
    release_promote(version=wider, document=Document.read(WIDER), actor=actor)
    serve(model)
    assert "max_batch_size: 2" in fitting_document(Version.objects.get(number=1)).text
    back = promotion(Version.objects.get(number=1))
    assert "max_batch_size: 2" in back.fitting.document.text
    assert back.preferred == "fitting"


def test_examples_that_do_not_fit_a_version_are_named_before_it_is_made_live(
    model: Model, wider: Version, actor: Actor, as_person: Callable[..., Client]
) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    y = {**x, "name": "y"}
    example_create(model=model, actor=actor, name="ones", request={"inputs": [x]}, expected={"outputs": [y]})
    why = "input 'x' is FP32 [-1, 6], and FP32 [1, 4] in the example"
    assert promotion(wider).examples == {"ones": why}
    assert promotion(Version.objects.get(number=1)).examples == {}
    operator = as_person("operate")
    assert why in text_of(operator, "/models/relu/versions/2/live").replace("&#x27;", "'")
    assert "Does not fit" not in text_of(operator, "/models/relu/playground")
    release_promote(version=wider, document=Document.read(WIDER), actor=actor)
    assert "Does not fit" in text_of(operator, "/models/relu/playground")


def test_a_page_names_the_clients_that_a_live_version_would_break_with_both_signatures(
    model: Model,
    wider: Version,
    actor: Actor,
    received: Callable[..., Upload],
    as_person: Callable[..., Client],
    api: APIClient,
) -> None:
    refused = "its input 'x' has shape [-1, 6], where it was [-1, 4]"
    assert promotion(wider).refused == ["it has no output 'y'", refused]
    operator = as_person()
    operator.force_login(actor.user)
    page = text_of(operator, "/models/relu/versions/2/live").replace("&#x27;", "'")
    assert "What they send to version 1 today is refused by version 2" in page
    assert '<td class="mono" data-label="Version 1, which answers now">FP32 [-1, 4]</td>' in page
    assert '<td class="mono" data-label="Version 2">FP32 [-1, 6]</td>' in page
    assert api.get("/api/v1/models/relu/versions/2/make_live").json()["refused"][-1] == refused
    same = as_inspected(received({"model.onnx": relu_bytes()}), inputs=tensors(x=4), outputs=tensors(y=4))
    assert "Nothing changes in what requests send" in text_of(operator, f"/uploads/{same.pk}/")
    more = as_inspected(received({"model.onnx": relu_bytes()}), inputs=tensors(x=4, m=1), outputs=tensors(p=4))
    page = text_of(operator, f"/uploads/{more.pk}/").replace("&#x27;", "'")
    assert "Input 'm' is new, FP32 [-1, 1]: requests have to send it." in page
    assert "Output 'y' is gone: requests that ask for it are refused." in page


ENSEMBLE = """platform: "ensemble"
max_batch_size: 8
input [ { name: "a" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "b" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [ { model_name: "relu" model_version: -1
  input_map { key: "x" value: "a" } output_map { key: "y" value: "b" } } ] }
"""


def test_ensembles_that_call_a_model_are_named_with_what_fails_in_them(
    model: Model, wider: Version, actor: Actor, received: Callable[..., Upload], as_person: Callable[..., Client]
) -> None:
    upload = as_inspected(received({"config.pbtxt": ENSEMBLE.encode()}, "twice"), format="ensemble", config=ENSEMBLE)
    upload_publish(upload=upload, actor=actor)
    [caller] = promotion(wider).callers
    troubles = [
        "input 'x', which it sends, is FP32 [-1, 6], where it was FP32 [-1, 4]",
        "output 'y', which it takes, is FP32 [-1, 6], where it was FP32 [-1, 4]",
    ]
    assert (caller.name, caller.troubles) == ("twice", troubles)
    assert promotion(Version.objects.get(number=1, model=model)).callers == [Caller("twice", [])]
    operator = as_person()
    operator.force_login(actor.user)
    assert "which it sends, is FP32 [-1, 6]" in text_of(operator, "/models/relu/versions/2/live")
    release_promote(version=wider, document=Document.read(WIDER), actor=actor)
    page = text_of(operator, "/models/relu/releases/1/").replace("&#x27;", "'")
    assert "it sends, is FP32 [-1, 4], where it was" in page
    narrow = as_inspected(received({"model.onnx": relu_bytes()}), inputs=tensors(x=4), outputs=tensors(y=4))
    assert "it takes output" not in text_of(operator, f"/uploads/{narrow.pk}/")
    other = as_inspected(received({"model.onnx": relu_bytes()}), inputs=tensors(x=4, m=1), outputs=tensors(p=4))
    assert "It does not send input 'm'." in text_of(operator, f"/uploads/{other.pk}/").replace("&#x27;", "'")


def test_a_step_that_names_a_version_fails_only_without_it() -> None:
    config = model_config.parse(ENSEMBLE.replace("model_version: -1", "model_version: 1"))
    [step] = config.ensemble_scheduling.step
    signature: Signature = {"inputs": [], "outputs": []}
    assert list(_troubles(step, signature, signature, [1], [1, 2])) == []
    assert list(_troubles(step, signature, signature, [1], [2])) == ["it calls version 1, which is not served any more"]


@pytest.mark.parametrize(
    ("inputs", "outputs", "said"),
    [
        ([("x", "FP64", [-1, 4])], [], "input 'x' is FP64 [-1, 4], and FP32 [1, 4] in the example"),
        ([("x", "FP32", [-1, -1, 4])], [], "input 'x' is FP32 [-1, -1, 4], and FP32 [1, 4] in the example"),
        ([("x", "FP32", [-1, 4]), ("mask", "BOOL", [-1])], [], "it does not send input 'mask'"),
        ([("z", "FP32", [-1, 4])], [], "it does not send input 'z'"),
        ([], [("z", "FP32", [-1, 4])], "there is no output 'y'"),
        ([("x", "FP32", [-1, 4])], [("y", "", [])], ""),  # not known
        ([], [], ""),
    ],
)
def test_what_of_an_example_does_not_fit(
    inputs: list[tuple[str, str, list[int]]], outputs: list[tuple[str, str, list[int]]], said: str
) -> None:
    def rows(tensors: list[tuple[str, str, list[int]]]) -> list[TensorRow]:
        return [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in tensors]

    example = Example(signature={"inputs": rows([("x", "FP32", [1, 4])]), "outputs": rows([("y", "FP32", [1, 4])])})
    assert misfit(example, {"inputs": rows(inputs), "outputs": rows(outputs)}) == said


def test_nothing_is_offered_where_the_present_text_fits(model: Model, published: Callable[..., Version]) -> None:
    found = promotion(published())
    assert (found.changes, found.fitting, found.preferred) == ([], None, "present")


def test_a_text_that_a_server_would_refuse_is_refused(model: Model, wider: Version, actor: Actor) -> None:
    before = current_document(model).text
    with pytest.raises(Invalid, match="not valid"):
        release_promote(
            version=wider,
            document=Document.read(CONFIG.replace("max_batch_size: 8", "max_batch_size: -1")),
            actor=actor,
        )
    assert current_document(model).text == before
