"""Cumulative statistics of a version, from the statistics extension (Triton docs/protocol/extension_statistics.md)."""

from dashboard.measurements.figures import Counts
from dashboard.models import Server
from dashboard.servers.client import ServerClient, ServerConnections
from repository.core.json_types import JsonObject

_DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_connections = ServerConnections()


def statistics_of(server: Server, name: str, number: int) -> Counts:
    """Return the statistics of a version by their paths. Raises DashboardError if the server does not answer."""
    return counts_in(ServerClient(server, _connections).statistics(name, str(number)))


def counts_in(row: JsonObject) -> Counts:
    """Return the counts in a row of the statistics' answer. Missing ones are 0, because protobuf leaves zeros out of JSON."""
    found: dict[tuple[str, ...], int] = {}
    totals = row.get("inference_stats")
    for name in _DURATIONS:
        _add(found, (name,), totals.get(name) if isinstance(totals, dict) else None)
    batches = row.get("batch_stats")
    for batch in batches if isinstance(batches, list) else []:
        if isinstance(batch, dict):
            for name in ("compute_input", "compute_infer", "compute_output"):
                _add(found, ("batch", str(batch.get("batch_size")), name), batch.get(name))
    return found


def _add(found: dict[tuple[str, ...], int], path: tuple[str, ...], duration: object) -> None:
    for part in ("count", "ns"):
        value = duration.get(part, 0) if isinstance(duration, dict) else 0
        found[*path, part] = int(value)
