"""Whether somebody still waits for an answer: long work that is done for an answer alone ends when its client has gone.

A view runs in a thread of its own, which nobody can stop from outside. So the work asks, between its steps: `go_on`.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from threading import Event
from typing import Any

from dashboard.shared.exceptions import DashboardError

# As Django has them, whose events are dictionaries.
_Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_Send = Callable[[Mapping[str, Any]], Awaitable[None]]
_Application = Callable[[dict[str, Any], _Receive, _Send], Awaitable[None]]

_gone: ContextVar[Event | None] = ContextVar("client_gone", default=None)


class ClientGone(DashboardError):
    """Nobody waits for the answer any more."""


def go_on() -> None:
    """Raise ClientGone where the client of the present request has closed its connection. For work that writes nothing."""
    gone = _gone.get()
    if gone is not None and gone.is_set():
        raise ClientGone("the client has closed its connection")


def noticing_clients_that_go(application: _Application) -> _Application:
    """Return the application, in which `go_on` knows of each request whether its client is there."""

    async def noticing(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        gone = Event()

        async def heard() -> Mapping[str, Any]:
            event = await receive()
            if event["type"] == "http.disconnect":
                gone.set()
            return event

        before = _gone.set(gone)
        try:
            await application(scope, heard, send)
        finally:
            _gone.reset(before)

    return noticing
