"""The names of an output's classes, kept with the model: a release whose configuration has them."""

from collections.abc import Callable

import pytest
from rest_framework.test import APIClient

from dashboard.models import Model, Version
from dashboard.playground.labels import output_labels
from dashboard.releases.selectors import current_document, newest_release

pytestmark = pytest.mark.django_db
PATH = "/api/v1/models/relu/class_names"


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


def test_names_are_a_release_until_they_are_taken_away(model: Model, api: APIClient) -> None:
    before, text = newest_release(model), current_document(model).text
    names = ["cat", "dog", "Größe", "“x”"]
    answer = api.put(PATH, {"output": "y", "names": names}, format="json")
    assert answer.status_code == 200, answer.content
    assert output_labels("relu") == {"y": names}
    assert newest_release(model).number == before.number + 1
    assert newest_release(model).summary == "Named the classes of y"
    assert api.put(PATH, {"output": "y", "names": []}, format="json").status_code == 200
    assert (output_labels("relu"), current_document(model).text) == ({}, text)


def test_names_that_nobody_could_see_are_refused(model: Model, api: APIClient) -> None:
    answer = api.put(PATH, {"output": "z", "names": ["cat"]}, format="json")
    assert (answer.status_code, answer.json()["error"]) == (400, "model 'relu' has no output 'z'; it has 'y'")
    assert api.put(PATH, {"output": "y", "names": ["x"] * 5001}, format="json").status_code == 400
    labelled = current_document(model).text.replace('name: "y"', 'name: "y" label_filename: "labels.txt"')
    api.put("/api/v1/models/relu/config", {"text": labelled}, format="json")
    answer = api.put(PATH, {"output": "y", "names": ["cat"]}, format="json")
    assert answer.status_code == 409
    assert "by the label file 'labels.txt'" in answer.json()["error"]
