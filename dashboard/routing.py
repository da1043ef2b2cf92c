"""WebSocket addresses."""

websocket_urlpatterns: list = []
