"""The answer to a request on the OpenAI-compatible routes, from the responses of the model: whole, or in pieces as they come.

Each response of the model is the next piece of text of one choice. Token counts are the model's, from outputs or response
parameters `num_input_tokens` and `num_output_tokens` (of each response), as the vLLM and TensorRT-LLM backends give them.
Source: OpenAI API reference, Completions and Chat.
"""

import codecs
import time
import uuid
from typing import Any

from serving.core.errors import ServingError, invalid
from serving.core.request import InferenceResponse
from serving.frontends.http1.event_stream import EventStream
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import STATUS, encodable, json_reply
from serving.frontends.openai.errors import error_object
from serving.frontends.openai.request import Asked
from serving.frontends.openai.stop_sequences import StopSequences

INPUT_TOKENS, OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"
MAX_TEXT = 16 << 20  # characters of an answer that is not streamed


class Answer:
    """Of a chat (`chat`) or of a completion. `output` is the model's output that holds the text."""

    def __init__(self, exchange: Exchange, asked: Asked, output: str, chat: bool) -> None:
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.exchange = exchange
        self.asked = asked
        self.output = output
        self.stream = EventStream(exchange) if asked.stream else None
        self.choices = [
            Choice(self, index, prompt if asked.echo else "")
            for index, prompt in enumerate(prompt for prompt in asked.prompts for _ in range(asked.n))
        ]
        self._chat = chat
        self._created = int(time.time())
        self._open = len(self.choices)
        self._size = 0

    def add(self, choice: "Choice", text: str) -> None:
        """The next piece of a choice's text."""
        if self.stream is not None:
            if text:
                self.stream.send(self._piece(choice, text))
            return
        choice.pieces.append(text)
        self._size += len(text)
        if self._size > MAX_TEXT:
            self.fail(invalid(f"the answer is longer than {MAX_TEXT} characters; ask for it as a stream"))

    def ended(self, choice: "Choice") -> None:
        if self.stream is not None:
            self.stream.send(self._piece(choice, "", choice.reason))
        self._open -= 1
        if self._open or self.exchange.done:
            return
        if self.stream is None:
            self._reply()
            return
        usage = self._usage()
        if self.asked.include_usage and usage is not None:
            self.stream.send(self._envelope(self._piece_kind(), []) | {"usage": usage})
        self.stream.send("[DONE]")
        self.stream.end()

    def fail(self, error: ServingError) -> None:
        """Before the first event as a plain error, else as an event; the other choices have nobody who waits for them."""
        if self.stream is None or not self.stream.started:
            self.exchange.fail(error)
            return
        self.stream.send(error_object(error, STATUS[error.code], encodable(error.message)))
        self.stream.end()

    # -- JSON ------------------------------------------------------------------------------------------------------
    def _reply(self) -> None:
        choices = []
        for choice in self.choices:
            text = "".join(choice.pieces)
            content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append(_described(choice, choice.reason) | content)
        kind = "chat.completion" if self._chat else "text_completion"
        self.exchange.reply(json_reply(self._envelope(kind, choices) | {"usage": self._usage()}))

    def _piece(self, choice: "Choice", text: str, reason: str | None = None) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self._chat:
            delta = {} if reason else {"content": text}
            content = {"delta": delta if choice.introduced else {"role": "assistant", "content": text}}
            choice.introduced = True
        piece = self._envelope(self._piece_kind(), [_described(choice, reason) | content])
        return piece | {"usage": None} if self.asked.include_usage else piece

    def _piece_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.asked.model, "choices": choices}

    def _usage(self) -> dict[str, int] | None:
        """None where the model does not count. A prompt counts once, however many answers it gets."""
        if not any(choice.counted for choice in self.choices):
            return None
        prompt = sum(choice.input_tokens for choice in self.choices[:: self.asked.n])
        completion = sum(choice.output_tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Choice:
    """One answer to one prompt: one request of the model."""

    def __init__(self, answer: Answer, index: int, lead: str) -> None:
        self.index = index
        self.pieces: list[str] = []
        self.introduced = False  # the client knows whose text it is
        self.reason = "stop"
        self.counted = False
        self.input_tokens = 0
        self.output_tokens = 0
        self._answer = answer
        self._lead = lead  # the prompt, where it is echoed
        self._ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopSequences(answer.asked.stops)

    def on_response(self, response: InferenceResponse | ServingError | None, final: bool) -> None:
        answer = self._answer
        if self._ended or answer.exchange.done:
            return
        if isinstance(response, ServingError):
            answer.fail(response)
            return
        piece = b"" if response is None else self._read(response)
        lead, self._lead = self._lead, ""
        answer.add(self, lead + self._stops.feed(self._decoder.decode(piece, final), final))
        if (final or self._stops.found) and not answer.exchange.done:
            self._end()

    def _read(self, response: InferenceResponse) -> bytes:
        """The text of a response; its counts and its reason to end are kept."""
        if self._answer.stream is not None:
            self._answer.stream.count(response)
        reason = response.parameters.get("finish_reason")
        if isinstance(reason, str):
            self.reason = reason
        self.input_tokens = _count(response, INPUT_TOKENS) or self.input_tokens
        generated = _count(response, OUTPUT_TOKENS)
        if generated is not None:
            self.counted = True
            self.output_tokens += generated
        array = response.outputs.get(self._answer.output)
        if array is None:
            return b""
        return b"".join(one if isinstance(one, bytes) else str(one).encode() for one in array.ravel().tolist())

    def _end(self) -> None:
        self._ended = True
        limit = self._answer.asked.settings.get("max_tokens")
        if self._stops.found:
            self.reason = "stop"
            self._answer.exchange.requests[self.index].cancel()
        elif self.reason == "stop" and isinstance(limit, int) and 0 < limit <= self.output_tokens:
            self.reason = "length"
        self._answer.ended(self)


def _described(choice: Choice, reason: str | None) -> dict[str, Any]:
    return {"index": choice.index, "logprobs": None, "finish_reason": reason}


def _count(response: InferenceResponse, name: str) -> int | None:
    """A number of tokens that the model tells, None where it does not."""
    array = response.outputs.get(name)
    if array is not None:
        return int(array.ravel()[0]) if array.size and array.dtype.kind in "iu" else None
    value = response.parameters.get(name)
    return value if type(value) is int else None
