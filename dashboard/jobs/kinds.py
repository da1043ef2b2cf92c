"""The kinds of long work. `settings.JOB_KINDS` says where each is: a Kind in the module `jobs` of the room whose work it is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from dashboard.jobs.context import JobContext
from dashboard.models import Job
from dashboard.shared.exceptions import Invalid


@dataclass(frozen=True, slots=True)
class Kind:
    """run: do the work and return its result, which is JSON. It must be safe to run again from the start: a worker may die
    at any moment.
    abandoned: put right what a job leaves that was ended while nobody ran it: cancelled in the queue, or its worker lost too
    often. Called in the transaction that ends it.
    """

    run: Callable[[JobContext], dict[str, Any]]
    abandoned: Callable[[Job], None]


def kind_path(name: str) -> str:
    """Return where a kind is; Invalid for a name that is not in the table."""
    kinds: dict[str, str] = settings.JOB_KINDS
    if name not in kinds:
        raise Invalid(f"expected a job of kind {', '.join(sorted(kinds))}, but got '{name}'")
    return kinds[name]


def load_kind(name: str) -> Kind:
    """Return a kind by the name that a job's row gives it: for whoever meets a job without knowing its work."""
    kind: Kind = import_string(kind_path(name))
    return kind
