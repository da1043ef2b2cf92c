"""GET /livez and GET /readyz show supervisors and load balancers whether the dashboard is alive, and whether it is ready.

/livez asks neither the database nor any other program: no answer means that this process must be replaced.
/readyz has status 200 if pages and REST are answered, and 503 if the database does not answer. A database that accepts no
writes for a while counts as ready: reads continue, and a request that writes waits and reports its error.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from channels.db import database_sync_to_async
from django.db import Error, connection

from dashboard.postgresql.presence import PRESENCE

_Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_Send = Callable[[Mapping[str, Any]], Awaitable[None]]
_Application = Callable[[dict[str, Any], _Receive, _Send], Awaitable[None]]

LIVENESS, READINESS = "/livez", "/readyz"
_OK, _AWAY = "ok", "the database does not answer"


def answer_health(application: _Application) -> _Application:
    """Wrap an ASGI application so that the event loop answers /livez and /readyz, with no thread and no session while the
    database is heard. Behind the threads of pages they would wait for seconds, and a load balancer would end all requests."""

    async def answered(scope: dict[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["path"] not in (LIVENESS, READINESS):
            await application(scope, receive, send)
            return
        status, said = 200, _OK
        if scope["method"] not in ("GET", "HEAD"):
            status, said = 405, f"{scope['path']} takes GET and HEAD"
        elif scope["path"] == READINESS and not (
            PRESENCE.answered_lately() or await database_sync_to_async(_answers)()
        ):
            status, said = 503, _AWAY
        body = b"" if scope["method"] == "HEAD" else json.dumps({"status": said}).encode()
        headers = [(b"content-type", b"application/json"), (b"x-content-type-options", b"nosniff")]
        headers += [(b"allow", b"GET, HEAD")] if status == 405 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answered


def _answers() -> bool:
    """Return whether the database answers."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return False
    return True
