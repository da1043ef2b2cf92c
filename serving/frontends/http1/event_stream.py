"""Server-sent events: the responses of models as a stream, for generate_stream and the OpenAI routes.

Source: the HTML standard, server-sent events.
"""

import orjson

from serving.core.response import InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.frontends.http1.exchange import Exchange

CONTENT_TYPE = "text/event-stream; charset=utf-8"


class EventStream:
    """An answer as server-sent events. Nothing is sent before the first event, so an earlier error can still be a plain answer.

    flow: gives back-pressure to the models of the requests while the client does not take the events.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sent = 0  # bytes of the flow that the client has not taken
        self.flow = ResponseFlow()
        self.started = False

    def send(self, value: object, status: int = 200) -> None:
        """Send one event: a value as JSON, or a text unchanged. status: the HTTP status, if this is the first event."""
        if self._exchange.done:
            return
        self._start(status)
        data = value.encode() if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        self._exchange.write(b"data: " + data + b"\n\n")

    def count(self, response: InferenceResponse) -> None:
        """Count a response in the flow. Called before its events are sent."""
        self._sent += response.size

    def end(self) -> None:
        if not self._exchange.done:
            self._start(200)
            self._exchange.end()
        self.flow.close()

    def _start(self, status: int) -> None:
        if not self.started:
            self.started = True
            self._exchange.start_stream(CONTENT_TYPE, status, on_drained=self._drained)

    def _drained(self) -> None:
        if self._sent:
            taken, self._sent = self._sent, 0
            self.flow.note_taken(taken)
