"""WebSocket addresses, and what stands before all of them."""

from typing import Any
from urllib.parse import urlsplit

from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.urls import path, re_path

from dashboard.jobs.consumers import JobConsumer
from dashboard.metrics.consumers import LiveConsumer
from dashboard.metrics.live import LiveFeeds
from dashboard.servers.consumers import LogConsumer


class Nowhere(AsyncWebsocketConsumer):
    """Any other address: refused before it is accepted, which is a 403, for signed in and stranger alike."""

    async def connect(self) -> None:
        await self.close()


# channels routes with django.urls.path, which Django types for views alone.
websocket_urlpatterns: list[Any] = [
    path("ws/live/", LiveConsumer.as_asgi(feeds=LiveFeeds())),  # type: ignore[arg-type]
    path("ws/jobs/<int:pk>/", JobConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/servers/<str:name>/log/", LogConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path("", Nowhere.as_asgi()),  # type: ignore[arg-type]
]
_checked = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))


async def websockets(scope: Any, receive: Any, send: Any) -> None:
    """For pages of ours alone."""
    await (_checked if _well_formed(scope) else WebsocketDenier())(scope, receive, send)


def _well_formed(scope: dict[str, Any]) -> bool:
    """False for an origin that is no address, and for a NUL, of which databases make different things."""
    try:
        urlsplit(dict(scope["headers"]).get(b"origin", b"").decode("latin-1")).port  # noqa: B018
    except ValueError:
        return False
    return "\0" not in scope["path"] and b"%00" not in scope["query_string"]
