"""Responses of a model as server-sent events over HTTP, for generate_stream and the OpenAI routes."""

import orjson

from serving.errors import ServingError
from serving.frontends.http_exchange import Exchange

CONTENT_TYPE = "text/event-stream; charset=utf-8"
MAX_BACKLOG = 8 << 20  # bytes that a client may leave unread before its request is cancelled


class EventStream:
    """Begins with its first event: until then an error can still be an answer of its own."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.started = False

    def send(self, value: object) -> None:
        """One event with a JSON value, or with text as it is."""
        exchange = self._exchange
        if exchange.done:
            return
        self._start()
        data = value.encode() if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        exchange.write(b"data: " + data + b"\n\n")
        if exchange.backlog > MAX_BACKLOG:
            exchange.connection.abort()

    def end(self) -> None:
        if not self._exchange.done:
            self._start()
            self._exchange.request = None
            self._exchange.end()

    def _start(self) -> None:
        if not self.started:
            self.started = True
            self._exchange.start_stream(CONTENT_TYPE)


def text_of(error: ServingError) -> str:
    """A message may quote what the client sent, half a surrogate pair for one."""
    return error.message.encode("utf-8", "replace").decode()
