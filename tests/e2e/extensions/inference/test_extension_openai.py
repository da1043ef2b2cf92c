"""The OpenAI-compatible routes, with OpenAI's own client, for models that say that they generate text."""

import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from tests.e2e.text_generator import CORPUS, markov
from tests.serving.frontends.raw_http import RawClient, build
from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

# Answers with its own inputs, and counts words as a model for the vLLM backend's interface counts tokens.
TELLER = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer(request) for request in requests]

        def answer(self, request):
            given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
            told = {name: value.decode() if isinstance(value, bytes) else value.item() for name, value in given.items()}
            told["parameters"] = json.loads(request.parameters())
            text = json.dumps(told, sort_keys=True)
            words = len(given["ask"].split())
            return pb_utils.InferenceResponse([
                pb_utils.Tensor("told", np.array([text.encode()], object)),
                pb_utils.Tensor("num_input_tokens", np.array([words], np.uint32)),
                pb_utils.Tensor("num_output_tokens", np.array([5], np.uint32)),
            ])
"""
INPUTS = [("ask", "BYTES"), ("temperature", "FP32"), ("stream", "BOOL"), ("sampling_parameters", "BYTES")]
ROLES = {"system": "[{content}]", "user": "Q: {content}\n", "assistant": "A: {content}\n"}


def teller(models, name: str, declared: dict, extra: str = "") -> None:
    inputs = tensors_text("input", [(*one, [1]) for one in INPUTS]).replace("dims: [1]", "dims: [1] optional: true")
    outputs = [("told", "BYTES", [1]), ("num_input_tokens", "UINT32", [1]), ("num_output_tokens", "UINT32", [1])]
    value = json.dumps(json.dumps(declared))
    text = f'parameters {{ key: "slipway.text_generation" value {{ string_value: {value} }} }}'
    python_model(
        models,
        name,
        TELLER,
        f'name: "{name}" backend: "python" {inputs} {tensors_text("output", outputs)} {text} {extra}',
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    markov(models)
    onnx_scale(models, "scale", 2.0)
    teller(
        models,
        "teller",
        {"prompt_input": "ask", "output": "told", "begin": "<s>", "message": ROLES, "reply": "A:"},
    )
    asleep = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'
    teller(models, "talker", {"messages_input": "ask", "output": "told"}, asleep)
    teller(models, "broken", {"prompt_input": "asks", "output": "told"})
    flags = [f"--load-model={name}" for name in ("markov", "scale", "teller", "talker")]
    with ServerProcess(models, "--model-control-mode=explicit", *flags) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.http_url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_only_models_that_generate_text_are_listed(client):
    assert [model.id for model in client.models.list()] == ["markov", "talker", "teller"]
    assert client.models.retrieve("markov").id == "markov"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("scale")


def test_a_completion_comes_whole_or_in_pieces(client):
    settings = {"model": "markov", "prompt": "the ", "max_tokens": 25, "seed": 3}
    whole = client.completions.create(**settings)
    assert len(whole.choices[0].text) == 25
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is None  # this model does not count
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


def test_several_answers_to_several_prompts(client):
    settings = {"model": "markov", "prompt": ["the ", "a"], "n": 3, "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**settings)
    texts = [choice.text for choice in whole.choices]
    assert [choice.index for choice in whole.choices] == list(range(6))
    assert len(set(texts)) > 2  # each answer has a seed of its own
    streamed = [""] * 6
    for piece in client.completions.create(**settings, stream=True):
        streamed[piece.choices[0].index] += piece.choices[0].text
    assert streamed == texts
    [single] = client.completions.create(**settings | {"prompt": "a", "n": 1}).choices
    assert single.text == texts[3]


def test_the_prompt_is_echoed_where_the_client_asks_for_it(client):
    settings = {"model": "markov", "prompt": "the ", "max_tokens": 5, "seed": 3}
    text = "the " + client.completions.create(**settings).choices[0].text
    assert client.completions.create(**settings, echo=True).choices[0].text == text
    pieces = client.completions.create(**settings, echo=True, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == text


def test_text_ends_before_a_stop_sequence_and_the_model_is_stopped(client):
    settings = {"model": "markov", "prompt": "the ", "seed": 3}
    text = client.completions.create(**settings, max_tokens=60).choices[0].text
    stop = text[20:23]
    expected = text[: text.index(stop)]
    for stops in (stop, ["#never#", stop]):
        # without the stop sequence this would go on for hours
        found = client.completions.create(**settings, max_tokens=100_000_000, stop=stops).choices[0]
        assert (found.text, found.finish_reason) == (expected, "stop")
    pieces = list(client.completions.create(**settings, max_tokens=100_000_000, stop=stop, stream=True))
    assert "".join(piece.choices[0].text for piece in pieces) == expected


def test_settings_go_to_the_inputs_of_their_names_else_into_parameters(client):
    answer = client.completions.create(
        model="teller", prompt="tell me", temperature=0.5, top_p=0.25, seed=7, max_tokens=9, user="me"
    )
    reported = json.loads(answer.choices[0].text)
    settings = {"max_tokens": 9, "seed": 7, "top_p": 0.25, "user": "me"}
    assert reported.pop("sampling_parameters") is not None
    assert reported == {"ask": "tell me", "temperature": 0.5, "stream": False, "parameters": settings}
    answer = client.completions.create(model="teller", prompt="a", stop=["@"])
    assert answer.choices[0].text.endswith('"stop": "[\\"')  # it is told, and it ends the text


def test_usage_is_what_the_model_counts(client):
    settings = {"model": "teller", "prompt": ["one two three", "four"], "n": 2, "max_tokens": 5}
    whole = client.completions.create(**settings)
    assert whole.usage.to_dict() == {"prompt_tokens": 4, "completion_tokens": 20, "total_tokens": 24}
    assert {choice.finish_reason for choice in whole.choices} == {"length"}
    *pieces, last = client.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(piece.usage is None and piece.choices for piece in pieces)
    assert all(piece.choices for piece in client.completions.create(**settings, stream=True))


def test_a_chat_becomes_a_prompt_by_the_models_own_templates(client):
    messages = [{"role": role, "content": f"<{role}>"} for role in ("system", "user", "assistant", "user")]
    reported = json.loads(client.chat.completions.create(model="teller", messages=messages).choices[0].message.content)
    assert reported["ask"] == "<s>[<system>]Q: <user>\nA: <assistant>\nQ: <user>\nA:"
    with pytest.raises(openai.BadRequestError, match="knows the roles system, user, assistant, not 'tool'"):
        client.chat.completions.create(model="teller", messages=[{"role": "tool", "content": "", "tool_call_id": "1"}])


def test_a_model_may_take_the_messages_themselves(client):
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    reported = json.loads(client.chat.completions.create(model="talker", messages=messages).choices[0].message.content)
    assert json.loads(reported["ask"]) == messages
    with pytest.raises(openai.BadRequestError, match="takes messages only"):
        client.completions.create(model="talker", prompt="a")


@pytest.mark.parametrize(
    ("fields", "expected", "param"),
    [
        ({"model": "absent"}, openai.NotFoundError, None),
        ({"model": "scale"}, openai.BadRequestError, None),
        ({"model": 5}, openai.BadRequestError, "model"),
        ({"prompt": "fail"}, openai.BadRequestError, None),
        ({"prompt": "fail", "stream": True}, openai.BadRequestError, None),
        ({"prompt": [1, 2]}, openai.BadRequestError, "prompt"),
        ({"prompt": []}, openai.BadRequestError, "prompt"),
        ({"prompt": ["a", ""]}, openai.BadRequestError, "prompt"),
        ({"prompt": ["a", "b"], "n": 100}, openai.BadRequestError, "n"),
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"best_of": 3}, openai.BadRequestError, "best_of"),
        ({"max_tokens": "many"}, openai.BadRequestError, "max_tokens"),
        ({"max_tokens": -1}, openai.BadRequestError, "max_tokens"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"top_p": "a"}, openai.BadRequestError, "top_p"),
        ({"seed": 1.5}, openai.BadRequestError, "seed"),
        ({"stop": ""}, openai.BadRequestError, "stop"),
        ({"stop": ["a", 1]}, openai.BadRequestError, "stop"),
        ({"stream": 1}, openai.BadRequestError, "stream"),
        ({"stream_options": {"include_usage": True}}, openai.BadRequestError, "stream_options"),
        ({"logprobs": 2}, openai.BadRequestError, "logprobs"),
        ({"logit_bias": {"5": 1}}, openai.BadRequestError, "logit_bias"),
        ({"suffix": "x"}, openai.BadRequestError, "suffix"),
    ],
)
def test_what_cannot_be_completed_is_the_clients_error_and_names_the_field(client, fields, expected, param):
    with pytest.raises(expected) as error:
        client.completions.create(**({"model": "markov", "prompt": "a"} | fields))
    body = error.value.body
    assert body["message"]
    assert (body["type"], body["param"]) == ("invalid_request_error", param)
    assert body["code"] == ("model_not_found" if expected is openai.NotFoundError else None)


@pytest.mark.parametrize(
    "messages", [None, [], ["a"], [{"role": "user"}], [{"role": "user", "content": [{"type": "image"}]}]]
)
def test_wrong_messages_are_refused(server, messages):
    body = {"model": "markov", "messages": messages}
    answer = httpx.post(f"{server.http_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"


@pytest.mark.parametrize("field", [{"tools": [{}]}, {"logprobs": True}, {"response_format": {"type": "json_object"}}])
def test_what_this_server_has_nothing_for_is_refused_by_name(server, field):
    body = {"model": "markov", "messages": [{"role": "user", "content": "a"}], **field}
    answer = httpx.post(f"{server.http_url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.json()["error"]["param"] == next(iter(field))


def test_an_error_in_the_middle_is_an_event(client):
    pieces = client.completions.create(model="markov", prompt="break", stream=True)
    with pytest.raises(openai.APIError, match="broke off"):
        list(pieces)


def test_errors_of_the_protocol_have_openais_form_too(server):
    answer = httpx.put(f"{server.http_url}/v1/completions", json={}, timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")
    answer = httpx.post(f"{server.http_url}/v1/completions", content=b"nonsense", timeout=PATIENCE_S)
    assert "failed to parse" in answer.json()["error"]["message"]


def test_a_stream_leaves_the_connection_open(server):
    body = json.dumps({"model": "markov", "prompt": "a", "max_tokens": 2, "stream": True}).encode()
    with RawClient(server.http) as raw:
        raw.send(build("POST", "/v1/completions", body) * 2)
        for _ in range(2):
            answer = raw.answer()
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert answer.body.endswith(b"data: [DONE]\n\n")


def test_a_client_that_goes_away_cancels_every_answer(server, client):
    def cancelled() -> int:
        _, answer = server.get("/v2/models/markov/stats")
        return int(answer["model_stats"][0]["inference_stats"]["fail"]["count"])

    before = cancelled()
    stream = client.completions.create(model="markov", prompt="a", n=3, max_tokens=100_000_000, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: cancelled() >= before + 3)


def test_a_declaration_that_does_not_fit_is_refused_when_the_model_loads(server):
    status, answer = server.post("/v2/repository/models/broken/load")
    assert status == 400
    assert "slipway.text_generation" in answer["error"]
    assert "'prompt_input': the model has no input 'asks'" in answer["error"]


def test_the_generated_text_is_of_the_models_own(client):
    text = client.completions.create(model="markov", prompt="q", max_tokens=40).choices[0].text
    assert set(text) <= set(CORPUS)
