"""Examples are kept by name, checked before they are kept, and written down in the audit trail."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.accounts.tokens import token_create
from dashboard.examples.selectors import golden_checks
from dashboard.examples.services import example_create
from dashboard.models import AuditEntry, Model
from dashboard.shared.exceptions import TooLarge
from tests.dashboard.conftest import CONFIG

pytestmark = pytest.mark.django_db
X = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, -1.0, 2.0, -2.0]}
Y = {"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 0.0, 2.0, 0.0]}
ONE = {"name": "signs", "request": {"inputs": [X]}}
EXAMPLES = "/api/v1/models/relu/examples"


@pytest.fixture
def relu_model(data_folder: Path) -> Model:
    return model_of(data_folder, CONFIG)


def model_of(data_folder: Path, text: str) -> Model:
    folder = data_folder / "models" / "relu"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(text)
    return Model.objects.create(name="relu")


def keep(api: APIClient, status: int = 201, **given: Any) -> Any:
    answer = api.post(EXAMPLES, {**ONE, **given}, format="json")
    assert answer.status_code == status, answer.content
    return answer.json()


def test_an_example_is_kept_renamed_and_deleted(api: APIClient, relu_model: Model) -> None:
    kept = keep(api, name=" signs ", source="playground")
    assert (kept["name"], kept["inputs"], kept["golden"]) == ("signs", "x FP32 [1, 4]", False)
    (row,) = api.get(EXAMPLES).json()["results"]
    assert "request" not in row
    assert (row["source"], row["created_by"]) == ("playground", "olga")
    assert api.patch(f"{EXAMPLES}/signs", {"name": "both signs"}, format="json").status_code == 200
    assert api.get(f"{EXAMPLES}/both signs").json()["request"] == {"inputs": [X]}
    assert api.delete(f"{EXAMPLES}/both signs").status_code == 204
    assert api.get(f"{EXAMPLES}/both signs").status_code == 404
    reported = AuditEntry.objects.filter(model_name="relu").values_list("action", "summary")
    assert list(reported) == [
        ("example.delete", "Deleted example “both signs” of relu"),
        ("example.change", "Renamed example “signs” of relu to “both signs”"),
        ("example.create", "Kept example “signs” of relu"),
    ]


def test_a_golden_example_is_what_a_load_is_sent(api: APIClient, relu_model: Model) -> None:
    keep(api)
    assert golden_checks(relu_model) == []
    change = {"expected": {"outputs": [Y]}, "golden": True, "absolute": 0.5, "relative": 0}
    api.patch(f"{EXAMPLES}/signs", change, format="json")
    assert golden_checks(relu_model) == [
        {
            "name": "signs",
            "request": {"inputs": [X]},
            "expected": {"outputs": [Y]},
            "tolerance": {"absolute": 0.5, "relative": 0.0},
        }
    ]
    api.patch(f"{EXAMPLES}/signs", {"golden": False}, format="json")
    assert golden_checks(relu_model) == []
    assert AuditEntry.objects.latest("at").summary == "Made example “signs” of relu an ordinary example again"


@pytest.mark.parametrize(
    ("given", "field", "said"),
    [
        ({"name": " "}, "name", "expected a name of 1 to 100 characters without a slash, such as 'a clear seven'"),
        ({"name": "a/b"}, "name", "expected a name of 1 to 100 characters"),
        ({"name": "a\0b"}, None, "name: Null characters are not allowed."),
        ({"request": {}}, "request", "expected 'inputs' as a list of tensors, and not an empty one"),
        ({"request": {"inputs": [{**X, "shape": [2]}]}}, "request", "tensor 'x': shape [2] has 2 elements"),
        ({"request": {"inputs": [{**X, "name": "z"}]}}, "request", "model 'relu' has no input 'z'; it has 'x'"),
        ({"expected": {"outputs": [X]}}, "expected", "model 'relu' has no output 'x'; it has 'y'"),
        ({"expected": "y"}, "expected", "expected the expected answer as an object with 'outputs'"),
        ({"golden": True}, "expected", "a golden request needs expected outputs"),
        ({"absolute": -1}, "absolute", "expected the absolute tolerance as a number from 0, such as 0.001"),
        ({"relative": "much"}, None, "relative: A valid number is required."),
    ],
)
def test_what_is_no_example_is_refused_at_its_field(
    api: APIClient, relu_model: Model, given: dict[str, Any], field: str | None, said: str
) -> None:
    body = keep(api, 400, **given)
    assert body["error"].startswith(said)
    assert [problem["field"] for problem in body.get("problems", [])] == ([field] if field else [])
    assert not relu_model.examples.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("model_transaction_policy { decoupled: true }", "answers a request with a stream"),
        ("sequence_batching { }", "keeps state from one request to the next"),
    ],
)
def test_a_model_that_needs_more_than_one_request_has_no_golden_ones(
    api: APIClient, data_folder: Path, more: str, said: str
) -> None:
    model_of(data_folder, f"{CONFIG}\n{more}\n")
    assert said in keep(api, 400, expected={"outputs": [Y]}, golden=True)["error"]
    keep(api)


def test_two_examples_of_a_model_never_share_a_name(api: APIClient, relu_model: Model) -> None:
    keep(api)
    keep(api, name="other")
    assert "choose another name" in keep(api, 409)["error"]
    answer = api.patch(f"{EXAMPLES}/other", {"name": "signs"}, format="json")
    assert answer.status_code == 409


def test_a_model_has_at_most_fifty(api: APIClient, relu_model: Model) -> None:
    for number in range(50):
        keep(api, name=f"{number}")
    assert keep(api, 409, name="51st")["error"] == "model 'relu' has 50 examples already; delete one first"


def test_examples_are_bounded_in_bytes(actor: Actor, relu_model: Model) -> None:
    def wide(elements: int) -> dict[str, Any]:
        return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [elements], "data": [0.5] * elements}]}

    with pytest.raises(TooLarge, match="at most 1048576 can be kept"):
        example_create(model=relu_model, actor=actor, name="too wide", request=wide(1 << 18))
    for number in range(8):
        example_create(model=relu_model, actor=actor, name=f"wide {number}", request=wide(250_000))
    with pytest.raises(TooLarge, match="Delete one first"):
        example_create(model=relu_model, actor=actor, name="one more", request=wide(250_000))


def test_bytes_and_numbers_that_json_lacks_are_kept(api: APIClient, data_folder: Path) -> None:
    model_of(data_folder, 'backend: "python"')
    rows = [
        {"name": "png", "datatype": "BYTES", "shape": [1], "base64": "BAAAAIlQTkc="},
        {"name": "nul", "datatype": "BYTES", "shape": [1], "data": ["a\0b"]},
        {"name": "half", "datatype": "FP16", "shape": [2], "data": [0.5, "NaN"]},
        {"name": "big", "datatype": "INT64", "shape": [1], "base64": "/////////38="},
    ]
    keep(api, request={"inputs": rows})
    kept = api.get(f"{EXAMPLES}/signs").json()["request"]["inputs"]
    assert [kept[0], *kept[2:]] == [rows[0], *rows[2:]]
    assert kept[1]["base64"] == "AwAAAGEAYg=="


def test_a_person_without_the_right_to_operate_reads_examples_and_changes_none(
    api: APIClient, relu_model: Model, person: Callable[..., Any]
) -> None:
    keep(api)
    viewer = APIClient()
    viewer.force_authenticate(person())
    assert viewer.get(f"{EXAMPLES}/signs").status_code == 200
    assert viewer.post(EXAMPLES, ONE, format="json").status_code == 403
    assert viewer.patch(f"{EXAMPLES}/signs", {"name": "mine"}, format="json").status_code == 403
    assert viewer.delete(f"{EXAMPLES}/signs").status_code == 403


def test_a_token_for_other_models_asks_nothing(relu_model: Model, actor: Actor) -> None:
    _, secret = token_create(user=actor.user, actor=actor, name="t", rights=["infer", "write"], model_names=[])
    _, other = token_create(user=actor.user, actor=actor, name="o", rights=["infer"], model_names=["other"])
    client = APIClient()
    client.post(EXAMPLES, ONE, format="json", HTTP_AUTHORIZATION=f"Bearer {secret}")
    for path in ("golden_checks", "examples/signs/answer"):
        answer = client.post(f"/api/v1/models/relu/{path}", {}, format="json", HTTP_AUTHORIZATION=f"Bearer {other}")
        assert answer.status_code == 403
        assert answer.json()["error"] == "this token may not infer with model 'relu'"
