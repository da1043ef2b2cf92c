"""Checks of the inference servers, of the files that the database knows, and of files that it does not know."""

import asyncio
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from django.conf import settings

from dashboard.alerts.machine import certificate_end, certificates
from dashboard.catalog.selectors import unmanaged_models
from dashboard.doctor.check import Note, NotMade
from dashboard.doctor.machine import named
from dashboard.models import Capture, Model, Server, ServerEnvironment, Version
from dashboard.releases.bucket import WRITE_S, managed_bucket, refuse_other_owner
from dashboard.releases.storage import files_missing
from dashboard.servers.client import AsyncServerClient, Unreachable
from dashboard.servers.selectors import servers
from dashboard.shared import heartbeat
from dashboard.shared.choices import VersionState
from dashboard.shared.environment import BASE_DIR
from dashboard.shared.exceptions import DashboardError, Forbidden
from dashboard.supervisor.probes import probe_http
from dashboard.uploads.services import unneeded_folders
from repository.core.errors import Unreachable as Lost
from repository.core.server_version import release_of

LEFT_S = 2 * 3600.0  # `watch` removes such folders after an hour


def answers() -> Iterator[str]:
    rows = [server for server in servers() if not server.leaving]
    if not rows:
        raise NotMade("no server is registered")
    if not heartbeat.processes():
        raise NotMade("no process of Slipway runs")

    async def look() -> list[list[str]]:
        return await asyncio.gather(*map(_look, rows))

    for faults in asyncio.run(look()):
        yield from faults


def lookups() -> Iterator[str]:
    for one in ServerEnvironment.objects.exclude(lookup_error=""):
        yield f"Servers of {one.name} are not looked up ({one.lookup_error}): correct this, or its settings"


async def _look(server: Server) -> list[str]:
    """Return the faults of one server, the first one that explains the others."""
    again = "it is restarted by itself; read logs/server.log" if server.bundled else "start it, or correct its address"
    async with AsyncServerClient(server) as client:
        try:
            version = await client.version()
            await client.index()
        except Unreachable as error:
            return [f"{error.message}: {again}"]
        except Forbidden as error:
            return [
                f"Server {server.name} refuses the control key ({error.message}): start it again with the key of this "
                "machine (SLIPWAY_CONTROL_KEY)"
            ]
        except DashboardError as error:
            return [f"Server {server.name} is not understood ({error.message}): start it with this release"]
    found = []
    if (own := _release()) and release_of(version) != own:
        found.append(f"Server {server.name} is of release {version}, and the dashboard of {own}: restart the older one")
    address = urlsplit(server.http_url)
    if not await probe_http(address.hostname or "", address.port or 80, "/v2/health/ready"):
        found.append(f"Server {server.name} is not ready: read on its page which model is loading or has failed")
    return found


def _release() -> str:
    """Return this release, or "" where its file is not installed."""
    try:
        return str(tomllib.loads((BASE_DIR / "pyproject.toml").read_text())["project"]["version"])
    except FileNotFoundError:
        return ""


def bucket() -> Iterator[str]:
    if (found := managed_bucket()) is None:
        raise NotMade("SLIPWAY_REPOSITORY is not set")
    try:
        with found.within(WRITE_S):
            refuse_other_owner(found)
            conditional = found.conditional
    except Lost as error:
        yield f"{error.message}: releases cannot be changed until it answers; what serves goes on"
    else:
        yield Note("conditional writes" if conditional else "a lease, because the store has no conditional writes")


def certificate_files() -> Iterator[str]:
    paths = certificates(settings.SERVER_FLAGS)
    if not paths:
        raise NotMade("SLIPWAY_SERVER_FLAGS names none")
    for path in paths:
        if certificate_end(path) is None:
            yield f"The certificate {path.name} cannot be read: correct its path in SLIPWAY_SERVER_FLAGS, or its rights"


def repository() -> Iterator[str]:
    if not Path(settings.MODEL_REPOSITORY).is_dir():
        yield "The folder of models is missing: mount the shared folder (SLIPWAY_SHARED), or put back a copy of models/"
        return
    for version in Version.objects.filter(state=VersionState.PUBLISHED).select_related("model"):
        if missing := files_missing(version.model, version.number):
            name = f"version {version.number} of {version.model.name}"
            yield f"Files of {name} are missing ({named(missing)}): put back a copy, or delete the version on its page"
    changed = list(Model.objects.exclude(drift=[]).order_by("name").values_list("name", flat=True))
    if changed:
        yield f"Files were changed by hand ({named(changed)}): open the page of the model, and adopt or overwrite the change"
    if unknown := unmanaged_models():
        yield (
            f"The repository has folders that are no models ({named(unknown)}): adopt them on the page Models, or move them "
            "away"
        )


def leftovers() -> Iterator[str]:
    left = list(unneeded_folders(before=time.time() - LEFT_S))
    if left:
        yield (
            f"The staging folder has {len(left)} folders of uploads that have ended: see that a watcher runs, which removes "
            "them, and that they belong to its account"
        )


def captures() -> Iterator[str]:
    for capture in Capture.objects.select_related("model"):
        counts = capture.counts
        if counts is not None and counts["trouble"]:
            yield f"A capture of {capture.model.name} has a fault: {counts['trouble']}. Correct this, or delete the capture"
