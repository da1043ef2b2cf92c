"""The kinds of jobs: every `Kind` in a module `jobs` of a room."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dashboard.access.authorisation import Right
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
    right: the right by which the person who began a job may cancel it. page: returns the address of the page of its subject,
    and a label; None if the subject is gone. attempts_in_vain: returns how often a worker has died without progress; after too
    many the job is given up.
    turn: the name of what the jobs of several kinds share, such as "machine"; such jobs run one after the other. "" for none.
    """

    name: str
    run: Work
    abandoned: Callable[[Job], None]
    of_upload: bool = False
    resume: tuple[str, str] = ("", "")
    report: str = ""
    right: Right = Right.UPLOAD_DATA
    page: Callable[[Job], tuple[str, str] | None] | None = None
    attempts_in_vain: Callable[[Job], int] = lambda job: job.attempt + 1
    turn: str = ""


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return the kinds by name. Their modules are imported here, because this room may not import the rooms with jobs."""
    rooms = sorted(path.parent.name for path in Path(__file__).parents[1].glob("*/jobs.py"))
    modules = [importlib.import_module(f"dashboard.{room}.jobs") for room in rooms]
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Kind)}


def kinds_beside(name: str) -> list[str]:
    """Return the names of the kinds whose jobs do not run beside a job of this kind; [] if it takes no turns."""
    turn = kinds()[name].turn if name in kinds() else ""
    return [kind.name for kind in kinds().values() if turn and kind.turn == turn]


def kind_of(name: str) -> Kind:
    """Return the kind of a name. Raises Invalid if the name is unknown."""
    known = kinds()
    if name not in known:
        raise Invalid(f"expected a job of kind {', '.join(sorted(known))}, but got '{name}'")
    return known[name]
