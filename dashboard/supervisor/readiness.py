"""Waits until the wanted models are loaded, before `up` reports that it is ready."""

import asyncio

from dashboard.models import Model, Server
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.choices import DesiredState
from dashboard.shared.exceptions import DashboardError

PATIENCE_S = 60.0
INTERVAL_S = 0.1


async def wait_for_models(server: Server) -> bool:
    """Wait until each wanted model is ready or has failed with a reason. Return False if PATIENCE_S passed first."""
    wanted = {
        name async for name in Model.objects.filter(desired_state=DesiredState.LOADED).values_list("name", flat=True)
    }
    async with AsyncServerClient(server) as client:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not wanted <= await _done(client):
                    await asyncio.sleep(INTERVAL_S)
        except TimeoutError:
            return False
    return True


async def _done(client: AsyncServerClient) -> set[str]:
    try:
        rows = await client.index()
    except DashboardError:  # the server has just ended, and is started again
        return set()
    return {row["name"] for row in rows if row.get("state") == "READY" or row.get("reason")}
