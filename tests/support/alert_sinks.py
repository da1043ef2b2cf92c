"""Receivers of messages about alerts: of webhooks and of e-mails, on loopback."""

import json
import socketserver
import threading
import time
from collections.abc import Callable
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Got(NamedTuple):
    """A message that arrived. at: time.time(). uid: its id. what: fired, resolved or test."""

    at: float
    uid: str
    what: str
    title: str


class Sinks:
    """Keeps what arrives. pause_s: so long a message is not answered, so that a kill meets it on its way."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.posts: list[tuple[Got, dict[str, Any]]] = []
        self.mails: list[Got] = []
        self.on_post: Callable[[], object] = lambda: None
        sinks = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                found = Got(time.time(), self.headers["Slipway-Delivery"], body["event"], body["title"])
                sinks.posts.append((found, body))
                sinks.on_post()
                time.sleep(pause_s)
                try:
                    self.send_response(200)
                    self.end_headers()
                except OSError:  # the sender was killed
                    pass

            def log_message(self, *_: object) -> None:
                pass

        class Mail(socketserver.StreamRequestHandler):
            """As much of SMTP as Django's backend speaks (RFC 5321)."""

            def handle(self) -> None:
                self._say("220 sink")
                while line := self.rfile.readline():
                    word = line[:4].upper()
                    if word == b"DATA":
                        self._say("354 go on")
                        lines = list(iter(self.rfile.readline, b".\r\n"))
                        sinks._keep_mail(b"".join(lines))
                        time.sleep(pause_s)
                    self._say("221 bye" if word == b"QUIT" else "250 sink" if word == b"EHLO" else "250 ok")
                    if word == b"QUIT":
                        return

            def _say(self, text: str) -> None:
                try:
                    self.wfile.write(f"{text}\r\n".encode())
                except OSError:  # the sender was killed
                    pass

        self._servers = [
            ThreadingHTTPServer(("127.0.0.1", 0), Hook),
            socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mail),
        ]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        ports = [server.server_address[1] for server in self._servers]
        self.address = f"http://127.0.0.1:{ports[0]}/hook"
        self.environment = {
            "SLIPWAY_ALERT_ADDRESSES": self.address,
            "SLIPWAY_SMTP": f"smtp://127.0.0.1:{ports[1]}",
        }

    def _keep_mail(self, text: bytes) -> None:
        mail = message_from_bytes(text)
        word, _, title = " ".join(str(mail["Subject"]).split()).partition("] ")  # long lines are folded
        what = {"[Firing": "fired", "[Resolved": "resolved", "[Test": "test"}[word]
        self.mails.append(Got(time.time(), str(mail["Message-ID"]), what, title))

    def got(self, title: str, what: str = "fired") -> list[Got]:
        """Return the messages by webhook whose titles contain a text."""
        return [one for one, _ in self.posts if title in one.title and one.what == what]

    def __enter__(self) -> "Sinks":
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
