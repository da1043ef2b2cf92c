"""The kinds of long work. `settings.JOB_KINDS` says where each is: a Kind in the module `jobs` of the room whose work it is."""

from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings
from django.utils.module_loading import import_string

from dashboard.jobs.context import JobContext
from dashboard.models import Job
from dashboard.shared.exceptions import Invalid

Work = Callable[[JobContext], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of job does.

    run: do the work and return its result, which is JSON. It must be safe to run again from the start: a worker may die at any
    moment.
    abandoned: put right what a job leaves that ended while nobody ran it, because it was cancelled in the queue or its worker
    was lost too often. It is called in the transaction that ends the job.
    """

    run: Work
    abandoned: Callable[[Job], None]


def kind_path(name: str) -> str:
    """Return where a kind is; Invalid for a name that is not in the table."""
    kinds: dict[str, str] = settings.JOB_KINDS
    if name not in kinds:
        raise Invalid(f"expected a job of kind {', '.join(sorted(kinds))}, but got '{name}'")
    return kinds[name]


def load_kind(name: str) -> Kind:
    """Return the kind of a name, as a job's row has it. Invalid: it is not in the table."""
    kind: Kind = import_string(kind_path(name))
    return kind
