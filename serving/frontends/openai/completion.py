"""Makes a completion or chat completion from a model's responses, as one JSON object or a stream of chunks.

Each response of the model is the next piece of text of one choice. Its token counts are its outputs or parameters
`num_input_tokens` and `num_output_tokens`, as with the vLLM and TensorRT-LLM backends.
Source: OpenAI API reference, Completions and Chat.
"""

import codecs
import time
import uuid

from serving.core.errors import ServingError, invalid
from serving.core.response import InferenceResponse
from serving.frontends.http1.event_stream import EventStream
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import STATUS, encodable, json_reply
from serving.frontends.openai.errors import error_object
from serving.frontends.openai.request import CompletionRequest
from serving.frontends.rest.json_body import JsonObject

INPUT_TOKENS, OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"
MAX_TEXT = 16 << 20  # characters of an answer that is not streamed


class Completion:
    """The answer to one request, with its choices."""

    def __init__(self, exchange: Exchange, asked: CompletionRequest, model: str, output: str, chat: bool) -> None:
        """model: the model's name in the answer. output: the name of the model's output with the text. chat: whether the answer
        is a chat completion."""
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self.exchange = exchange
        self.asked = asked
        self.model = model
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
        if self.stream is not None:
            if text:
                self.stream.send(self._chunk(choice, text))
            return
        choice.pieces.append(text)
        self._size += len(text)
        if self._size > MAX_TEXT:
            self.fail(invalid(f"the answer is longer than {MAX_TEXT} characters; ask for it as a stream"))

    def end(self, choice: "Choice") -> None:
        """End one choice. The end of the last choice ends the answer."""
        if self.stream is not None:
            self.stream.send(self._chunk(choice, "", choice.reason))
        self._open -= 1
        if self._open or self.exchange.done:
            return
        if self.stream is None:
            self._reply()
            return
        usage = self._usage()
        if self.asked.include_usage and usage is not None:
            self.stream.send(self._object(self._chunk_kind(), []) | {"usage": usage})
        self.stream.send("[DONE]")
        self.stream.end()

    def fail(self, error: ServingError) -> None:
        """Answer with an error, as an event if the stream has begun. This ends all choices."""
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
        self.exchange.reply(json_reply(self._object(kind, choices) | {"usage": self._usage()}))

    def _chunk(self, choice: "Choice", text: str, reason: str | None = None) -> JsonObject:
        content: JsonObject = {"text": text}
        if self._chat:
            delta = {} if reason else {"content": text}
            content = {"delta": delta if choice.role_sent else {"role": "assistant", "content": text}}
            choice.role_sent = True
        piece = self._object(self._chunk_kind(), [_described(choice, reason) | content])
        return piece | {"usage": None} if self.asked.include_usage else piece

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _object(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self._created, "model": self.model, "choices": choices}

    def _usage(self) -> dict[str, int] | None:
        """Return the token counts, or None if the model does not count tokens. A prompt with several answers counts once."""
        if not any(choice.counted for choice in self.choices):
            return None
        prompt = sum(choice.input_tokens for choice in self.choices[:: self.asked.n])
        completion = sum(choice.output_tokens for choice in self.choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class Choice:
    """One answer to one prompt. Each answer takes one request to the model."""

    def __init__(self, completion: Completion, index: int, prefix: str) -> None:
        """prefix: the prompt if it is echoed before the model's text, else ""."""
        self.index = index
        self.pieces: list[str] = []
        self.role_sent = False
        self.reason = "stop"
        self.counted = False
        self.input_tokens = 0
        self.output_tokens = 0
        self._completion = completion
        self._prefix = prefix
        self._ended = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = StopSequences(completion.asked.stops)

    def on_response(self, response: InferenceResponse | ServingError | None, final: bool) -> None:
        completion = self._completion
        if self._ended or completion.exchange.done:
            return
        if isinstance(response, ServingError):
            completion.fail(response)
            return
        piece = b"" if response is None else self._read(response)
        prefix, self._prefix = self._prefix, ""
        completion.add(self, prefix + self._stops.feed(self._decoder.decode(piece, final), final))
        if (final or self._stops.found) and not completion.exchange.done:
            self._end()

    def _read(self, response: InferenceResponse) -> bytes:
        """Return the text of a response as bytes of UTF-8. Keep its token counts and its finish reason."""
        if self._completion.stream is not None:
            self._completion.stream.count(response)
        reason = response.parameters.get("finish_reason")
        if isinstance(reason, str):
            self.reason = reason
        self.input_tokens = _count(response, INPUT_TOKENS) or self.input_tokens
        generated = _count(response, OUTPUT_TOKENS)
        if generated is not None:
            self.counted = True
            self.output_tokens += generated
        array = response.outputs.get(self._completion.output)
        if array is None:
            return b""
        return b"".join(one if isinstance(one, bytes) else str(one).encode() for one in array.ravel().tolist())

    def _end(self) -> None:
        self._ended = True
        limit = self._completion.asked.settings.get("max_tokens")
        if self._stops.found:
            self.reason = "stop"
            self._completion.exchange.requests[self.index].end_early()
        elif self.reason == "stop" and isinstance(limit, int) and 0 < limit <= self.output_tokens:
            self.reason = "length"
        self._completion.end(self)


def _described(choice: Choice, reason: str | None) -> JsonObject:
    return {"index": choice.index, "logprobs": None, "finish_reason": reason}


def _count(response: InferenceResponse, name: str) -> int | None:
    """Return a token count of a response, or None if it does not have this count."""
    array = response.outputs.get(name)
    if array is not None:
        return int(array.ravel()[0]) if array.size and array.dtype.kind in "iu" else None
    value = response.parameters.get(name)
    return value if type(value) is int else None


class StopSequences:
    """Truncates streamed text before the stop sequence that ends first, even if it spans several pieces.

    Text that may be the beginning of a stop sequence is held back until more text comes. found: whether a stop sequence has
    come.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def feed(self, text: str, final: bool = False) -> str:
        """Take the next piece of text. Return the text that may be sent now."""
        if not self._stops or self.found:
            return "" if self.found else text
        text = self._held + text
        places = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found = True
            return text[: min(places)[1]]
        end = len(text) if final else len(text) - self._unsure(text)
        self._held = text[end:]
        return text[:end]

    def _unsure(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop sequence."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if self._begins(text[-size:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
