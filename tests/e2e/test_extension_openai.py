"""The OpenAI-compatible routes, with OpenAI's own client, for a model that says that it generates text."""

from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.e2e.text_generator import markov
from tests.model_factory import onnx_scale
from tests.serving_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    markov(models)
    onnx_scale(models, "scale", 2.0)
    with ServerProcess(models, "--model-control-mode=explicit", "--load-model=markov", "--load-model=scale") as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_only_models_that_generate_text_are_listed(client):
    assert [model.id for model in client.models.list()] == ["markov"]
    assert client.models.retrieve("markov").id == "markov"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("scale")


def test_a_completion_comes_whole_or_in_pieces(client):
    settings = {"model": "markov", "prompt": "the ", "max_tokens": 25, "seed": 3}
    whole = client.completions.create(**settings)
    assert len(whole.choices[0].text) == 25
    assert whole.choices[0].finish_reason == "stop"
    pieces = list(client.completions.create(**settings, stream=True))
    assert len(pieces) == 26
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text
    assert {piece.id for piece in pieces} == {pieces[0].id}
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_a_chat_completion_comes_whole_or_in_pieces(client):
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
    ]
    settings = {"model": "markov", "messages": messages, "max_completion_tokens": 10, "seed": 3}
    whole = client.chat.completions.create(**settings)
    assert whole.choices[0].message.role == "assistant"
    text = whole.choices[0].message.content
    assert len(text) == 10
    pieces = list(client.chat.completions.create(**settings, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "absent"}, openai.NotFoundError),
        ({"model": "scale"}, openai.BadRequestError),
        ({"prompt": "fail"}, openai.BadRequestError),
        ({"prompt": "fail", "stream": True}, openai.BadRequestError),
        ({"prompt": [1, 2]}, openai.BadRequestError),
        ({"n": 2}, openai.BadRequestError),
        ({"max_tokens": "many"}, openai.BadRequestError),
    ],
)
def test_what_cannot_be_completed_is_the_clients_error(client, fields, expected):
    with pytest.raises(expected) as error:
        client.completions.create(**({"model": "markov", "prompt": "a"} | fields))
    assert error.value.body["message"]


@pytest.mark.parametrize(
    "messages", [None, [], ["a"], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}]]
)
def test_wrong_messages_are_refused(server, messages):
    body = {"model": "markov", "messages": messages}
    answer = httpx.post(f"{server.http_url}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
