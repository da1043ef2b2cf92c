"""The latencies of a version in its server, from decoded requests to answers, as captures measure them too."""

import asyncio
import time
from contextlib import aclosing

from dashboard.models import Server
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.messages import StatsEvent
from repository.core.histogram import Counts

_PATIENCE_S = 2.0  # for the count of a request that was answered a moment ago


def latencies(server: Server, model: str, version: int, least: int = 0) -> Counts:
    """Return the cumulative latencies of a version. least: wait a moment until there are so many.

    Raises Unavailable if the server does not answer."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        found = asyncio.run(_read(server, model, str(version)))
        if sum(found.values()) >= least or time.monotonic() > until:
            return found


async def _read(server: Server, model: str, version: str) -> Counts:
    """Read the first figures of the live feed, which have every version."""
    async with AsyncServerClient(server) as client, aclosing(client.feed()) as events:
        async for event in events:
            if isinstance(event, StatsEvent):
                for row in event.data["models"]:
                    if (row["name"], row["version"]) == (model, version):
                        return {int(bucket): count for bucket, count in row["request_latency"]["counts"].items()}
                return {}
    return {}
