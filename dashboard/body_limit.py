"""Bounds what a stranger can make the web process hold.

Daphne keeps a whole request body in memory before the application, and with it any check of rights, is asked. So the bound
is put where the bytes arrive: Twisted's `Request.handleContentChunk`.
"""

from daphne.http_protocol import WebRequest

# A request passed on to the inference server is the largest (api.views.inference), an upload's chunk has 8 MiB.
MAX_BODY_BYTES = 66 << 20
_REFUSAL = (
    b"HTTP/1.1 413 Content Too Large\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"error": "the body of the request is too large"}'
)


def limit_bodies() -> None:
    """Makes daphne refuse larger bodies as they arrive, and close the connection."""
    WebRequest.handleContentChunk = _bounded(WebRequest.handleContentChunk)


def _bounded(receive):
    def handle_content_chunk(self: WebRequest, data: bytes) -> None:
        if self.content.tell() + len(data) <= MAX_BODY_BYTES:
            receive(self, data)
        elif not getattr(self, "refused", False):
            self.refused = True
            self.channel.transport.write(_REFUSAL)
            self.channel.loseConnection()

    return handle_content_chunk
