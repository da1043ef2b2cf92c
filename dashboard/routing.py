"""The addresses of WebSockets, and the checks before all of them."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from channels.auth import AuthMiddlewareStack
from channels.generic.websocket import AsyncWebsocketConsumer
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator, WebsocketDenier
from django.urls import URLPattern, path, re_path

from dashboard.jobs.consumers import JobConsumer
from dashboard.metrics.consumers import LiveConsumer
from dashboard.metrics.live import FEEDS
from dashboard.servers.consumers import LogConsumer, ModelLogConsumer
from dashboard.web.changes import Changes, ChangesConsumer
from dashboard.web.traffic import TRAFFIC

if TYPE_CHECKING:
    from channels.consumer import _ChannelScope


class Nowhere(AsyncWebsocketConsumer):
    """Refuses WebSockets at unknown addresses: the client gets status 403."""

    async def connect(self) -> None:
        await self.close()


# Channels routes with django.urls.path, whose type hints accept only views.
websocket_urlpatterns: list[URLPattern] = [
    path("ws/changes/", ChangesConsumer.as_asgi(changes=Changes())),  # type: ignore[arg-type]
    path("ws/live/", LiveConsumer.as_asgi(feeds=FEEDS)),  # type: ignore[arg-type]
    path("ws/jobs/<int:pk>/", JobConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/servers/<str:name>/log/", LogConsumer.as_asgi()),  # type: ignore[arg-type]
    path("ws/models/<str:name>/log/", ModelLogConsumer.as_asgi()),  # type: ignore[arg-type]
    re_path("", Nowhere.as_asgi()),  # type: ignore[arg-type]
]
_KINDS = {str(one.pattern).split("/")[1] for one in websocket_urlpatterns[:-1]}
TRAFFIC.websockets.update(dict.fromkeys(_KINDS, 0))
_checked = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))  # type: ignore[arg-type]  # likewise


async def websockets(scope: "_ChannelScope", receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Route a WebSocket that one of our pages opens; deny all others."""
    kind = next(iter(scope["path"].split("/")[2:3]), "")
    with TRAFFIC.websocket(kind if kind in _KINDS else "other"):
        await (_checked if _well_formed(scope) else WebsocketDenier())(scope, receive, send)


def _well_formed(scope: "_ChannelScope") -> bool:
    """Return False for an invalid origin, and for an address with a NUL, which databases treat differently."""
    try:
        urlsplit(dict(scope["headers"]).get(b"origin", b"").decode("latin-1")).port  # noqa: B018
    except ValueError:
        return False
    return "\0" not in scope["path"] and b"%00" not in scope["query_string"]
