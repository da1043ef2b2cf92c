"""What the pages and the API show of inference servers. Metrics history: metrics/selectors.py."""

from datetime import datetime

from django.db.models import QuerySet

from dashboard.models import ModelState, Server, ServerEvent
from dashboard.shared.exceptions import NotFound


def servers() -> QuerySet[Server]:
    """Return the servers with their states, the bundled one first."""
    return Server.objects.select_related("state")


def server_get(name: str) -> Server:
    """Return a server; NotFound where there is none of that name."""
    try:
        return servers().get(name=name)
    except Server.DoesNotExist:
        raise NotFound(f"there is no server named '{name}'") from None


def server_events(*, server: Server | None = None, since: datetime | None = None) -> QuerySet[ServerEvent]:
    """Return what happened to a server, or to all, the newest first."""
    events = ServerEvent.objects.select_related("server")
    if server is not None:
        events = events.filter(server=server)
    return events.filter(at__gte=since) if since else events


def model_states(*, server: Server | None = None, model_name: str = "") -> QuerySet[ModelState]:
    """Return what servers say of versions: of one server, of one model, or of all."""
    states = ModelState.objects.select_related("server")
    if server is not None:
        states = states.filter(server=server)
    return states.filter(model_name=model_name) if model_name else states
