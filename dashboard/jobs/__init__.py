"""The kinds of long work: name -> the module that does it (see Kind)."""

from importlib import import_module
from typing import Any, Protocol, cast

from dashboard.exceptions import Invalid
from dashboard.jobs.context import JobContext
from dashboard.models import Job

KINDS: dict[str, str] = {
    "inspect": "dashboard.jobs.inspect",
    "publish": "dashboard.jobs.publish",
    "archive": "dashboard.jobs.archive",
    "restore": "dashboard.jobs.restore",
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
