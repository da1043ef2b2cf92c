"""The kinds of long work: name -> the module that does it (see Kind)."""

from importlib import import_module
from typing import Any, Protocol, cast

from dashboard.jobs.context import JobContext
from dashboard.models import Job
from dashboard.shared.exceptions import Invalid

KINDS: dict[str, str] = {
    "inspect": "dashboard.uploads.inspection_job",
    "publish": "dashboard.uploads.publication_job",
    "archive": "dashboard.versions.archive_job",
    "restore": "dashboard.versions.restore_job",
}


class Kind(Protocol):
    """What such a module has."""

    def run(self, context: JobContext) -> dict[str, Any]:
        """The work; its result is JSON. Safe to run again from the start: a worker may die at any moment."""
        ...

    def abandoned(self, job: Job) -> None:
        """The job was ended while nobody ran it: cancelled in the queue, or its worker lost too often. In its transaction."""
        ...


def load_kind(kind: str) -> Kind:
    if kind not in KINDS:
        raise Invalid(f"expected a job of kind {', '.join(sorted(KINDS))}, but got '{kind}'")
    return cast(Kind, import_module(KINDS[kind]))
