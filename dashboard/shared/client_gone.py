"""Ends long work whose only purpose is an answer, once the client has disconnected.

A view runs in its own thread, which cannot be stopped from outside. So the work calls `go_on` between its steps.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from threading import Event
from typing import Any

from dashboard.shared.exceptions import DashboardError

# The types of an ASGI application in Django, whose events are dictionaries.
_Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_Send = Callable[[Mapping[str, Any]], Awaitable[None]]
_Application = Callable[[dict[str, Any], _Receive, _Send], Awaitable[None]]

_gone: ContextVar[Event | None] = ContextVar("client_gone", default=None)


class ClientGone(DashboardError):
    """The client has closed its connection."""


def go_on() -> None:
    """Raise ClientGone if the client of the present request has closed its connection. Work that writes must not call it."""
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise ClientGone("the client has closed its connection")


def watch_clients(application: _Application) -> _Application:
    """Wrap an ASGI application so that `go_on` knows whether the client of each request is still connected."""

    async def watched(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        gone = Event()

        async def receive_and_note() -> Mapping[str, Any]:
            event = await receive()
            if event["type"] == "http.disconnect":
                gone.set()
            return event

        before = _gone.set(gone)
        try:
            await application(scope, receive_and_note, send)
        finally:
            _gone.reset(before)

    return watched
