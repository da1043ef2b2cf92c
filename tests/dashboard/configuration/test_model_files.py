"""A configuration is held against the model files of the versions that it would serve, wherever it is checked."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.configuration.model_files import Arriving
from dashboard.configuration.services import config_apply, config_preview
from dashboard.models import Model, Version
from dashboard.releases.selectors import current_document
from dashboard.shared.exceptions import Invalid
from dashboard.uploads.publication import upload_publish
from dashboard.versions.services import release_promote
from repository.config.document import Document
from repository.config.file_check import ModelFile
from repository.config.signature import Signature, SignatureObject, TensorSignature
from tests.dashboard.conftest import CONFIG, as_inspected, relu_bytes, version_from

pytestmark = pytest.mark.django_db

WIDE = CONFIG.replace("dims: [ 4 ]", "dims: [ 6 ]")


def signature(width: int) -> SignatureObject:
    def tensor(name: str) -> TensorSignature:
        return TensorSignature(name, "FP32", (-1, width))

    return Signature((tensor("x"),), (tensor("y"),)).to_json()


def known(width: int, **more: Any) -> dict[str, Any]:
    return {"backend": "onnxruntime", "signature": signature(width), **more}


@pytest.fixture
def versions(published: Callable[..., Version]) -> tuple[Version, Version]:
    """Two versions of relu: the first of 4 numbers in each row, the second of 6."""
    first, second = published(load=True), published(load=False)
    for version, width in ((first, 4), (second, 6)):
        version.details = {**version.details, **known(width)}
        version.save()
    return first, second


def specific(text: str, *numbers: int) -> str:
    return f"{text}version_policy {{ specific {{ versions: [ {', '.join(map(str, numbers))} ] }} }}\n"


def wrong(text: str, arriving: Arriving | None = None) -> list[tuple[str, int]]:
    found = config_preview(model_name="relu", document=Document.read(text), arriving=arriving)
    assert found.valid == (not found.problems)
    return [(problem.field, problem.line) for problem in found.problems]


def test_each_version_that_would_be_served_must_fit(versions: tuple[Version, Version]) -> None:
    assert wrong(specific(CONFIG, 1)) == []
    assert wrong(specific(WIDE, 2)) == []
    both = config_preview(model_name="relu", document=Document.read(specific(CONFIG, 1, 2))).problems
    assert [problem.field for problem in both] == ["inputs[0].dims", "outputs[0].dims"]
    assert both[0].message.startswith("version 2: input 'x' has shape [-1, 4]")
    assert both[0].line == specific(CONFIG, 1, 2)[: specific(CONFIG, 1, 2).index("dims")].count("\n") + 1


def test_what_is_wrong_with_several_versions_is_said_once(versions: tuple[Version, Version]) -> None:
    text = specific(CONFIG.replace('"onnxruntime"', '"pytorch"'), 1, 2)
    [problem] = config_preview(model_name="relu", document=Document.read(text)).problems
    assert problem.field == "backend"
    assert problem.message.startswith("versions 1, 2: ")


def test_a_version_that_arrives_is_held_against_its_own_file(versions: tuple[Version, Version]) -> None:
    file = ModelFile("onnxruntime", "model.onnx", signature=Signature.from_json(signature(9)))
    assert wrong(specific(CONFIG.replace("dims: [ 4 ]", "dims: [ 9 ]"), 1), Arriving(3, file)) == []
    assert [field for field, _ in wrong(specific(CONFIG, 3), Arriving(3, file))] == [
        "inputs[0].dims",
        "outputs[0].dims",
    ]


def test_the_overlay_of_a_version_counts(versions: tuple[Version, Version], data_folder: Any) -> None:
    overlay = data_folder / "models" / "relu" / "2" / "slipway.pbtxt"
    overlay.write_text(WIDE[WIDE.index("input") :].split("dynamic_batching")[0])
    assert wrong(specific(CONFIG, 1, 2)) == []


def test_a_text_that_does_not_fit_is_not_applied(versions: tuple[Version, Version], actor: Actor) -> None:
    model = versions[0].model
    before = current_document(model).text
    with pytest.raises(Invalid, match=r"input\[0\].dims: version 1: ") as refused:
        config_apply(model=model, document=Document.read(specific(WIDE, 1)), actor=actor)
    assert refused.value.problems[0].field == "inputs[0].dims"
    assert current_document(model).text == before


def test_a_version_is_made_live_with_a_text_that_fits_it_or_not_at_all(
    versions: tuple[Version, Version], actor: Actor
) -> None:
    with pytest.raises(Invalid, match="version 2: "):
        release_promote(version=versions[1], actor=actor)
    release = release_promote(version=versions[1], actor=actor, document=Document.read(WIDE))
    assert release.versions == [2]
    assert wrong(release.text) == []
    assert wrong(specific(WIDE, 1))


def test_what_is_known_only_from_an_example_is_a_warning(versions: tuple[Version, Version]) -> None:
    first = versions[0]
    first.details = {"backend": "onnxruntime", "signature": {**signature(6), "example": True}}
    first.save()
    found = config_preview(model_name="relu", document=Document.read(specific(CONFIG, 1)))
    assert {problem.severity for problem in found.problems} == {"warning"}


def test_of_a_version_from_before_its_signature_was_kept_the_recorded_one_warns(
    published: Callable[..., Version],
) -> None:
    assert "signature" not in published().details
    found = config_preview(model_name="relu", document=Document.read(WIDE))
    assert {problem.severity for problem in found.problems} == {"warning"}


# -- publishing --------------------------------------------------------------------------------------------------------
@pytest.fixture
def arrived(published: Callable[..., Version], received: Callable[..., Any]) -> Any:
    """relu serves a version of 4 numbers, and an upload of 6 is inspected."""
    first = published(load=True)
    first.details = {**first.details, **known(4)}
    first.save()
    return as_inspected(received({"model.onnx": relu_bytes()}, "relu"), **known(6), config=WIDE)


def test_a_version_is_not_published_live_with_a_text_that_does_not_fit_it(arrived: Any, actor: Actor) -> None:
    with pytest.raises(Invalid, match="version 2: input 'x' has shape"):
        upload_publish(upload=arrived, actor=actor, document=Document.read(CONFIG), make_live=True)
    version = version_from(upload_publish(upload=arrived, actor=actor, document=Document.read(WIDE), make_live=True))
    assert (version.number, version.details["signature"]) == (2, signature(6))
    assert wrong(current_document(version.model).text) == []


def test_publishing_alone_leaves_what_serves_its_text_and_keeps_the_new_one_for_the_version(
    arrived: Any, actor: Actor
) -> None:
    version = version_from(upload_publish(upload=arrived, actor=actor, document=Document.read(WIDE), load=False))
    text = current_document(version.model).text
    assert "dims: [ 4 ]" in text
    assert "dims: [ 6 ]" in version.config
    assert wrong(text) == []


def test_the_review_of_an_upload_says_what_does_not_fit_its_file(arrived: Any, actor: Actor, client: Client) -> None:
    client.force_login(actor.user)
    answer = client.post(
        f"/uploads/{arrived.pk}/preview", {"text": specific(CONFIG, 2)}, content_type="application/json"
    ).json()
    assert not answer["valid"]
    assert [problem["field"] for problem in answer["problems"]] == ["inputs[0].dims", "outputs[0].dims"]


def test_rest_says_the_same(versions: tuple[Version, Version], actor: Actor, client: Client) -> None:
    client.force_login(actor.user)
    sent = {"text": specific(WIDE, 1)}
    answer = client.post("/api/v1/models/relu/config/preview", sent, content_type="application/json").json()
    assert not answer["valid"]
    applied = client.put("/api/v1/models/relu/config", sent, content_type="application/json")
    assert applied.status_code == 400
    assert applied.json()["problems"][0]["field"] == "inputs[0].dims"
    assert Model.objects.get().releases.count() == 2
