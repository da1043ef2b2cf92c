"""The kinds of jobs: every `Kind` in a module `jobs` of a room."""

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

    name: as in a job's row. run: does the work and returns its result as JSON. It must be safe to run again from the start,
    because a worker may die at any moment.
    abandoned: cleans up after a job that ended without a worker: cancelled in the queue, or given up because its worker died
    too often. It is called in the transaction that ends the job.
    of_upload: whether the job works on one upload, whose page shows it.
    resume: the URL name of the page that continues a job that did not succeed, for people who may upload code, and the label
    of its button. report: the template that shows the result.
    """

    name: str
    run: Work
    abandoned: Callable[[Job], None]
    of_upload: bool = False
    resume: tuple[str, str] = ("", "")
    report: str = ""


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the kinds by name. Their modules are imported here, because this room may not import the rooms with jobs."""
    rooms = sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/jobs.py"))
    modules = [importlib.import_module(f"dashboard.{room}.jobs") for room in rooms]
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Kind)}


def kind_of(name: str) -> Kind:
    """Return the kind of a name. Raises Invalid if the name is unknown."""
    known = kinds()
    if name not in known:
        raise Invalid(f"expected a job of kind {', '.join(sorted(known))}, but got '{name}'")
    return known[name]
