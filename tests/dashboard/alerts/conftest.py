"""Conditions that tests switch on and off, and a receiver of webhooks."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.alerts import channels, services
from dashboard.alerts.channels import channel_create
from dashboard.alerts.facts import Finding
from dashboard.alerts.outbox import alerts_tell
from dashboard.alerts.services import alerts_evaluate
from dashboard.alerts.table import AlertKind
from dashboard.models import AlertChannel

START = datetime(2026, 6, 1, 12, 0, tzinfo=timezone.get_default_timezone())


@dataclass
class Condition:
    """A kind of alert whose subjects a test chooses, and a clock that the test moves."""

    subjects: set[str] = field(default_factory=set)
    now: datetime = START
    broken: bool = False
    opens: bool = True

    def kind(self, **more: Any) -> AlertKind:
        given = {"name": "planted", "label": "Planted", "severity": "warning", "hold_s": 10.0, "clear_s": 30.0, **more}
        return AlertKind(means="It means this.", do="Do that.", button="Open", find=self._find, **given)

    def _find(self, _: object) -> list[Finding]:
        if self.broken:
            raise RuntimeError("the finder has a fault")
        return [
            Finding(one, f"{one} is planted", "a detail", "/servers/", opens=self.opens)
            for one in sorted(self.subjects)
        ]

    def look(self, seconds: float = 0.0) -> None:
        """Let time pass, and do what `watch` does."""
        self.now += timedelta(seconds=seconds)
        alerts_evaluate(now=self.now)
        alerts_tell(now=self.now)


@pytest.fixture
def condition(db: None, monkeypatch: pytest.MonkeyPatch) -> Condition:
    found = Condition()
    monkeypatch.setattr(services, "kinds", lambda: [found.kind()])
    return found


@pytest.fixture(autouse=True)
def unannounced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker: tests send the messages themselves."""
    monkeypatch.setattr(channels, "announce", lambda: None)


@pytest.fixture
def root(person: Callable[..., Any]) -> Actor:
    return Actor(user=person(name="root", is_superuser=True))


class Receiver:
    """A web server that keeps what is posted to it. statuses: of its next answers, 200 when they are used up."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    found = Receiver()
    settings.ALERT_ADDRESSES = [found.address]
    yield found
    found.close()


@pytest.fixture
def webhook(root: Actor, receiver: Receiver) -> AlertChannel:
    return channel_create(actor=root, name="hook", kind="webhook", address=receiver.address)[0]
