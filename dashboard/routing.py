"""WebSocket addresses."""

from django.urls import path

from dashboard.consumers import JobConsumer, LiveConsumer, LogConsumer

websocket_urlpatterns = [
    path("ws/live/", LiveConsumer.as_asgi()),
    path("ws/jobs/<int:pk>/", JobConsumer.as_asgi()),
    path("ws/servers/<str:name>/log/", LogConsumer.as_asgi()),
]
