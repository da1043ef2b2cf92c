"""Sends a release to an OCI registry, in a job. A blob that the registry has is not sent again, so a job that runs again, after
its worker was killed or it was cancelled, goes on with the first file that is missing. The manifest is sent last."""

import hashlib
import time
from collections.abc import Iterator

from django.conf import settings
from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.exports.artifact import Blob, files_of, hashed, manifest_of
from dashboard.jobs.context import JobContext
from dashboard.jobs.progress import JobProgress
from dashboard.jobs.services import job_create
from dashboard.models import Job, Release
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, NotFound, Unavailable
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads.sources.base import PIECE_BYTES
from dashboard.uploads.sources.registry_client import Reference, Registry, parse_reference

KIND = "export"
SETTING = "SLIPWAY_EXPORT_REGISTRIES"
MOST_TRIES = 5  # of one blob
FIRST_WAIT_S = 1.0  # before a further try; it doubles with each one


def release_export(*, release: Release, address: str, actor: Actor) -> Job:
    """Begin to send a release to a registry. address: as for `oras`; without a tag, the release's number is the tag.

    Raises Invalid or Forbidden for an address, and Conflict if a version of the release is gone.
    """
    require(actor, Right.OPERATE)
    reference = _reference(address, release)
    with repository_errors():
        files_of(release)
    with transaction.atomic():
        job = job_create(
            kind=KIND,
            params={"release": release.pk, "address": reference.text()},
            actor=actor,
            title=f"Export release {release.number} of {release.model.name}",
            model=release.model,
        )
        audit_record(
            actor=actor,
            action="release.export",
            model=release.model,
            summary=f"Began to export release {release.number} of {release.model.name} to {reference.text()}",
            after={"address": reference.text(), "job": job.pk},
        )
    return job


def _reference(address: str, release: Release) -> Reference:
    found = parse_reference(address, settings.EXPORT_REGISTRIES, SETTING)
    if found.digest:
        raise Invalid.at("address", "the address has a digest, but an export is named by a tag")
    return found if found.tag else found._replace(tag=str(release.number))


# -- the job -----------------------------------------------------------------------------------------------------------
def export_run(context: JobContext) -> dict[str, object]:
    """Run the job `export`, whose params are {"release": id, "address": text}. Return what was sent."""
    release = Release.objects.select_related("model").filter(pk=context.params["release"]).first()
    if release is None:
        raise NotFound("the release is gone: its model was deleted")
    if context.job.created_by is None and context.job.created_by_name != "system":
        raise Forbidden("the account that began this export is gone")
    if context.job.created_by is not None:
        require(Actor(user=context.job.created_by), Right.OPERATE)
    with repository_errors():
        try:
            return _Export(context, release).run()
        except FileNotFoundError:
            raise Conflict("a file of the release was removed while it was exported; try again") from None


def export_abandoned(job: Job) -> None:
    """Leave what the registry has: it removes blobs that no manifest names by itself."""


class _Export:
    """One attempt to send a release."""

    def __init__(self, context: JobContext, release: Release) -> None:
        self._context, self._release = context, release
        self._reference = _reference(context.params["address"], release)
        self._registry = Registry(self._reference, settings.EXPORT_REGISTRIES, "pull,push")
        self._progress = JobProgress(context)
        self._sent = 0

    def run(self) -> dict[str, object]:
        self._registry.secrets()  # a registry that refuses is told before all files are read
        found = files_of(self._release)
        whole = sum(one.stat().st_size for one in found.values() if not isinstance(one, bytes))
        self._progress.plan(2 * whole)
        self._progress.step("Hashing")
        files = [hashed(name, source, self._progress) for name, source in sorted(found.items())]
        config, manifest = manifest_of(self._release, files)
        for blob in (*{one.digest: one for one in files}.values(), config):
            self._send(blob)
        self._registry.send_manifest(self._reference.tag, manifest)
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        self._context.log(f"{self._reference.text()} is {digest}; {self._sent} bytes were sent")
        return {
            "address": self._reference.text(),
            "digest": digest,
            "files": len(files),
            "bytes": sum(blob.size for blob in files),
            "sent_bytes": self._sent,
        }

    def _send(self, blob: Blob) -> None:
        what = blob.name or "the description"
        self._progress.step(f"Sending {what}")
        for tried in range(1, MOST_TRIES + 1):
            try:
                if self._registry.has_blob(blob.digest):
                    self._context.log(f"{what}: the registry has it already")
                    return
                self._registry.send_blob(blob.digest, blob.size, self._pieces(blob))
            except Unavailable as error:
                if tried == MOST_TRIES:
                    raise
                self._context.log(f"{what}: {error.message}; try {tried + 1}")
                self._wait(FIRST_WAIT_S * 2 ** (tried - 1))
            else:
                self._sent += blob.size
                self._context.log(f"{what}: {blob.size} bytes, SHA-256 {blob.sha256}")
                return

    def _pieces(self, blob: Blob) -> Iterator[bytes]:
        """Yield a blob, as long as it was. Raises Conflict if its file has become shorter."""
        left = blob.size
        with blob.open() as file:
            while left:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise Conflict(f"'{blob.name}' was changed while it was exported; try again")
                yield piece
                left -= len(piece)
                self._progress.advance(len(piece))

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.5))
            self._context.check_cancelled()
