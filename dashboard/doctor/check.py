"""Runs checks one after another. A check whose ground is faulty is not made, because its fault would only be told again."""

import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from django.core.management.base import CommandError
from django.db import Error

from dashboard.shared.exceptions import DashboardError
from dashboard.shared.startup import sentence
from repository.core.errors import RepositoryError


class NotMade(Exception):
    """A check does not apply here; the reason completes a sentence."""


class Note(str):
    """What a check tells although it is no fault; it completes the title."""


class _TooLong(BaseException):
    """A check has used up its time; nothing that a check catches."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. name: one word. find: yields a sentence for each fault, or a Note, or raises an error with one sentence.
    after: the check without whose success this one is not made. limit_s: the longest that it may take."""

    name: str
    title: str
    find: Callable[[], Iterable[str]]
    after: str = ""
    limit_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a check. faults: sentences. why: the reason why it was skipped, or its note."""

    check: str
    title: str
    state: Literal["ok", "wrong", "skipped"]
    faults: tuple[str, ...] = ()
    why: str = ""


def examine(checks: Iterable[Check], *, limited: bool = False) -> Iterator[Finding]:
    """Make the checks in their order, and yield what became of each.

    limited: whether to break off checks that hang. This takes the main thread, and the process's alarm.
    """
    states: dict[str, str] = {}
    for check in checks:
        grounded = states.get(check.after, "ok") == "ok"
        found = (
            _make(check, limited) if grounded else _skipped(check, f"the check '{check.after}' has to succeed first")
        )
        states[check.name] = found.state
        yield found


def _make(check: Check, limited: bool) -> Finding:
    faults: list[str] = []
    note = ""
    try:
        with _limit(check.limit_s if limited else 0):
            for found in check.find():
                if isinstance(found, Note):
                    note = found
                else:
                    faults.append(sentence(found))
    except _TooLong:
        faults.append(
            f"This took longer than {check.limit_s:.0f} s and was broken off: see whether the disks, the database and the "
            "servers answer, and run the checks again."
        )
    except NotMade as reason:
        return _skipped(check, str(reason))
    except (DashboardError, RepositoryError) as error:
        faults.append(sentence(error.message))
    except CommandError as error:
        faults.append(sentence(str(error)))
    except Error as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        faults.append(f"The database failed while this was looked at: {first}. Run manage.py doctor again.")
    except OSError as error:
        faults.append(f"The files cannot be read: {error.strerror}. Give them to the account that runs Slipway.")
    return Finding(check.name, check.title, "wrong" if faults else "ok", tuple(faults), str(note))


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise _TooLong within the block after so many seconds; 0 for never."""
    if not seconds:
        yield
        return

    def end(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _skipped(check: Check, why: str) -> Finding:
    return Finding(check.name, check.title, "skipped", why=why)
