"""Writes about inference servers: the bundled server's row, restarts that people ask for, events."""

from collections.abc import Iterable

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.models import Server, ServerEvent, ServerState
from dashboard.shared.exceptions import Conflict
from repository.core.plain_text import plain

LOCAL = "local"  # the name of the first bundled server


def server_ensure_local(*, name: str = LOCAL) -> Server:
    """Create or update the row of this machine's bundled server with the addresses of the settings, and return it."""
    host = settings.DASHBOARD_HOST if settings.DASHBOARD_HOST not in ("0.0.0.0", "::") else "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    server, _ = Server.objects.update_or_create(
        name=name,
        defaults={
            "http_url": f"http://{host}:{settings.SERVER_HTTP_PORT}",
            "grpc_url": f"{host}:{settings.SERVER_GRPC_PORT}",
            "metrics_url": f"http://{host}:{settings.SERVER_METRICS_PORT}",
            "bundled": True,
        },
    )
    ServerState.objects.get_or_create(server=server)
    return server


def server_restart(*, server: Server, actor: Actor) -> None:
    """Ask `up` to restart the bundled server, which finishes its requests first.

    Raises Forbidden if the actor does not administer.
    Raises Conflict if this dashboard does not run the server.
    """
    require(actor, Right.ADMINISTER)
    if not server.bundled:
        raise Conflict(f"this dashboard does not run server {server.name}: restart it where it runs")
    with transaction.atomic():
        ServerState.objects.update_or_create(server=server, defaults={"restart_requested_at": timezone.now()})
        audit_record(actor=actor, action="server.restart", summary=f"Asked server {server.name} to restart")


def server_event_record(
    *, server: Server, kind: str, message: str = "", model_name: str = "", process: str = ""
) -> ServerEvent:
    """Record an event of a server. kind: an EventKind. message: a sentence. process: the name of another process of `up`, if
    the event is about that."""
    event = ServerEvent(server=server, kind=kind, message=message, model_name=model_name, process=process)
    return server_events_record([event])[0]


def server_events_record(events: Iterable[ServerEvent]) -> list[ServerEvent]:
    """Record several events together, with their messages made plain."""
    rows = list(events)
    for row in rows:
        row.message = plain(row.message)[:2000]
    return ServerEvent.objects.bulk_create(rows)
