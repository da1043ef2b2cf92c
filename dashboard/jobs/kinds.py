"""The kinds of long work: settings.JOB_KINDS names the module that does each (see Kind)."""

from importlib import import_module
from typing import Any, Protocol, cast

from django.conf import settings

from dashboard.jobs.context import JobContext
from dashboard.models import Job
from dashboard.shared.exceptions import Invalid


class Kind(Protocol):
    """What such a module has."""

    def run(self, context: JobContext) -> dict[str, Any]:
        """The work; its result is JSON. Safe to run again from the start: a worker may die at any moment."""
        ...

    def abandoned(self, job: Job) -> None:
        """The job was ended while nobody ran it: cancelled in the queue, or its worker lost too often. In its transaction."""
        ...


def load_kind(kind: str) -> Kind:
    kinds: dict[str, str] = settings.JOB_KINDS
    if kind not in kinds:
        raise Invalid(f"expected a job of kind {', '.join(sorted(kinds))}, but got '{kind}'")
    return cast(Kind, import_module(kinds[kind]))
