"""The playground of a TorchServe archive: asked as its handler wants it, with code for TorchServe's clients."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.imports.bundled_server import PREDICTIONS
from dashboard.models import Upload
from dashboard.uploads.publication import upload_publish
from tests.dashboard.conftest import text_of, version_from
from tests.support.torchserve_archives import archive

pytestmark = pytest.mark.django_db

STREAMS = """
from ts.handler_utils.utils import send_intermediate_predict_response
def handle(data, context):
    send_intermediate_predict_response(["a"], context.request_ids, "OK", 200, context)
    return ["b"]
"""


@pytest.fixture
def play(
    inspected: Callable[..., Upload], actor: Actor, client: Client, tmp_path: Path, server: Any
) -> Callable[..., Any]:
    """play(handler=...): the page of a published archive, and what its script begins with."""

    def publish(**contents: Any) -> tuple[str, dict[str, Any]]:
        packed = archive(tmp_path / "words.mar", version="1.0", **contents).read_bytes()
        version_from(
            upload_publish(upload=inspected({"words.mar": packed}, model_name="words"), actor=actor, load=False)
        )
        client.force_login(actor.user)
        page = text_of(client, "/models/words/playground")
        found = re.search(r'id="play-data" type="application/json">(.*?)</script>', page)
        assert found is not None
        return page, json.loads(html.unescape(found[1]))

    return publish


def test_a_handler_is_asked_with_bytes_of_a_type_and_its_log_stands_beside_the_answer(play: Callable[..., Any]) -> None:
    page, data = play()
    assert (data["handler"], data["archive_versions"], data["log"]) == (True, {"1": "1.0"}, "/models/words/log")
    assert "Log of the handler" in page
    assert 'data-snippet="predictions"' not in page  # nobody listens


def test_code_for_torchserves_clients_stands_there_where_they_are_served(
    play: Callable[..., Any], settings: Any
) -> None:
    settings.SERVER_FLAGS = ["--torchserve=true"]
    page, data = play(handler=STREAMS)
    assert 'data-snippet="predictions" aria-pressed="true"' in page
    assert data["server"]["torchserve"] == "http://127.0.0.1:8080"
    assert data["decoupled"] is True
    assert "sends each part in a chunk" in page
    assert "cannot be compared" not in page  # there is one
    assert data["addresses"]["infer"] == "/api/v1/models/words/infer_stream"


def test_declared_tensors_are_asked_as_tensors(
    inspected: Callable[..., Upload], actor: Actor, client: Client, tmp_path: Path
) -> None:
    tensors = (
        'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }'
    )
    files = {
        "words.mar": archive(tmp_path / "words.mar").read_bytes(),
        "config.pbtxt": f'backend: "torchserve" {tensors}'.encode(),
    }
    version_from(upload_publish(upload=inspected(files, model_name="words"), actor=actor, load=False))
    client.force_login(actor.user)
    assert '"handler": false' in html.unescape(text_of(client, "/models/words/playground"))


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("inference_address=http://0.0.0.0:9080", "http://127.0.0.1:9080"),
        ("inference_address = http://models.example:8090", "http://models.example:8090"),
        ("management_address=http://127.0.0.1:9081", "http://127.0.0.1:8080"),
        ("inference_address=unix:/tmp/ts.sock", ""),
        ("inference_address=\\u12", ""),
    ],
)
def test_the_address_is_that_of_config_properties(written: str, address: str, settings: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.properties"
    path.write_text(written)
    settings.TORCHSERVE_CONFIG = path
    assert PREDICTIONS.address() == address
