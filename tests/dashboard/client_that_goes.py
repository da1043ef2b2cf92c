"""A client of the REST API that closes its connection before it is answered. The view runs in its thread all the same."""

import asyncio
import json

from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler

from dashboard.shared.client_gone import watch_clients

_SECRET = "a" * 32


async def asking(path: str, body: object, session: str) -> ApplicationCommunicator:
    """Post JSON to an address. session: the cookie's value."""
    cookies = f"{settings.SESSION_COOKIE_NAME}={session}; {settings.CSRF_COOKIE_NAME}={_SECRET}"
    headers = {
        "content-type": "application/json",
        "host": "localhost",
        "cookie": cookies,
        "x-csrftoken": _SECRET,
        "origin": "http://localhost",
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    client = ApplicationCommunicator(watch_clients(ASGIHandler()), scope)
    await client.send_input({"type": "http.request", "body": json.dumps(body).encode()})
    return client


async def go(client: ApplicationCommunicator) -> None:
    """Close the connection, and return when the application has heard of it."""
    await client.send_input({"type": "http.disconnect"})
    while not client.input_queue.empty():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0)
