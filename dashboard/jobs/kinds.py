"""The kinds of long work: every `Kind` in a module `jobs` of the room whose work it is."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dashboard.jobs.context import JobContext
from dashboard.models import Job
from dashboard.shared.exceptions import Invalid

Work = Callable[[JobContext], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    name: as a job's row has it. run: do the work and return its result, which is JSON. It must be safe to run again from the
    start: a worker may die at any moment.
    abandoned: put right what a job leaves that ended while nobody ran it, because it was cancelled in the queue or its worker
    was lost too often. It is called in the transaction that ends the job.
    of_upload: it works on one upload, whose page shows it. resume: the name of the address that goes on with one that did not
    succeed, for people who may upload code, and what its button says. report: the template that shows its result.
    """

    name: str
    run: Work
    abandoned: Callable[[Job], None]
    of_upload: bool = False
    resume: tuple[str, str] = ("", "")
    report: str = ""


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the kinds by name. The modules are imported here, for the rooms with jobs stand above this one."""
    rooms = sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/jobs.py"))
    modules = [importlib.import_module(f"dashboard.{room}.jobs") for room in rooms]
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Kind)}


def kind_of(name: str) -> Kind:
    """Return the kind of a name; Invalid for an unknown one."""
    known = kinds()
    if name not in known:
        raise Invalid(f"expected a job of kind {', '.join(sorted(known))}, but got '{name}'")
    return known[name]
