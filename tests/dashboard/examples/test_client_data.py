"""Clients' data is shown to people with the right to operate, by one rule, wherever it is kept."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.template.loader import render_to_string
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.accounts.tokens import token_create
from dashboard.examples.runs import golden_failure
from dashboard.examples.selectors import examples, golden_checks
from dashboard.examples.services import example_change, example_create
from dashboard.models import Example, Model, Server
from dashboard.shared.choices import ExampleSource, TokenRight
from tests.dashboard.conftest import CONFIG, relu_bytes
from tests.support.ports import HOST
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.django_db

SECRET = 4711.5  # what a client sent
EXAMPLES = "/api/v1/models/relu/examples"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [SECRET, -1, 0.5, 0]}]}
WRONG = {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [SECRET - 100, 0, 0.5, 0]}]}


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("models") / "relu"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(relu_bytes())
    (folder / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(folder.parent, "--model-control-mode=explicit", "--load-model=relu") as server:
        yield server


@pytest.fixture
def model(inference: ServerProcess, actor: Actor) -> Model:
    """A model with the same golden request twice: typed by a person, and kept from live traffic."""
    urls = {"http_url": f"http://{inference.http}", "grpc_url": inference.grpc, "metrics_url": f"http://{HOST}:1"}
    Server.objects.create(name="local", bundled=True, **urls)
    model = Model.objects.create(name="relu")
    given = {"model": model, "actor": actor, "request": REQUEST, "expected": WRONG, "golden": True}
    example_create(name="typed", **given)
    example_create(name="live", source=ExampleSource.TRAFFIC, **given)
    return model


def with_token(person: Any, *rights: TokenRight) -> APIClient:
    until = timezone.now() + timedelta(days=1)
    _, secret = token_create(actor=Actor(user=person), user=person, name="t", rights=list(rights), expires_at=until)
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return client


def test_an_example_of_live_traffic_is_shown_to_who_may_operate(model: Model, person: Callable[..., Any]) -> None:
    operator = person("operate")
    reading = with_token(operator, TokenRight.READ, TokenRight.INFER)
    for client in (with_token(person(), TokenRight.READ, TokenRight.INFER), reading):
        assert client.get(f"{EXAMPLES}/typed").status_code == 200
        refused = client.get(f"{EXAMPLES}/live")
        assert refused.status_code == 403, refused.content
        assert client.post(f"{EXAMPLES}/typed/answer", {}, format="json").status_code == 200
        assert client.post(f"{EXAMPLES}/live/answer", {}, format="json").status_code == 403
    writing = with_token(operator, TokenRight.READ, TokenRight.WRITE, TokenRight.INFER)
    assert writing.get(f"{EXAMPLES}/live").json()["request"]["inputs"][0]["data"][0] == SECRET
    assert writing.post(f"{EXAMPLES}/live/answer", {}, format="json").json()["outputs"][0]["data"][0] == SECRET


def test_what_is_told_of_it_to_everybody_names_no_element(model: Model, person: Callable[..., Any]) -> None:
    """The check itself, what is kept of it, the list, the page's part."""
    client = with_token(person(), TokenRight.READ, TokenRight.INFER)
    reported = client.post("/api/v1/models/relu/golden_checks", {}, format="json").json()
    details = {row["name"]: row["detail"] for row in reported["results"]}
    assert "4711.5" in details["typed"]
    assert details["live"] == "output 'y': 1 of 4 elements differ by more than is allowed"
    assert [row["outputs"][0]["detail"] for row in reported["results"] if row["name"] == "live"] == [details["live"]]
    Example.objects.get(name="typed").delete()
    listed = client.get(EXAMPLES).json()
    shown = {"model": model, "examples": [(row, "") for row in examples(model)], "may": {}}
    page = render_to_string("playground/playground_examples.html", shown)
    for text in (str(listed), page):
        assert "live" in text
        assert "4711" not in text
        assert "4611" not in text
    assert "A client sent it" in page
    assert 'data-act="load"' not in page


def test_a_server_that_checks_it_before_a_release_serves_names_no_element(
    model: Model, inference: ServerProcess
) -> None:
    """Its refusal becomes the release's check, an event, an error on pages, and lines of logs."""

    def refusal(name: str) -> str:
        golden = json.dumps([one for one in golden_checks(model) if one["name"] == name])
        body = {
            "parameters": {
                "slipway.golden": golden,
                "config": json.dumps({"backend": "onnxruntime", "max_batch_size": 2}),
            }
        }
        return httpx.post(f"http://{inference.http}/v2/repository/models/relu/load", json=body, timeout=60).text

    assert "4711.5" in refusal("typed")
    said = refusal("live")
    assert "1 of 4 elements differ" in said
    assert "4711" not in said
    assert "4611" not in said


def test_what_is_kept_again_of_it_stays_of_a_client(model: Model, actor: Actor) -> None:
    changed = example_change(example=Example.objects.get(name="live"), actor=actor, name="another", request=REQUEST)
    assert changed.of_clients


def test_a_server_is_asked_whether_golden_requests_pass_there(model: Model) -> None:
    server = Server.objects.get()
    assert golden_failure(model=model, server=server).startswith("golden request 'live' failed: ")
    model.examples.update(expected={"outputs": [{**WRONG["outputs"][0], "data": [SECRET, 0, 0.5, 0]}]})
    assert golden_failure(model=model, server=server) == ""
