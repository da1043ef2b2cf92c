"""Runs checks one after another. A check whose ground is faulty is not made, because its fault would only be told again."""

from collections.abc import Callable, Iterable, Iterator
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


@dataclass(frozen=True, slots=True)
class Check:
    """One check. name: one word. find: yields a sentence for each fault, or a Note, or raises an error with one sentence.
    after: the check without whose success this one is not made."""

    name: str
    title: str
    find: Callable[[], Iterable[str]]
    after: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a check. faults: sentences. why: the reason why it was skipped, or its note."""

    check: str
    title: str
    state: Literal["ok", "wrong", "skipped"]
    faults: tuple[str, ...] = ()
    why: str = ""


def examine(checks: Iterable[Check]) -> Iterator[Finding]:
    """Make the checks in their order, and yield what became of each."""
    states: dict[str, str] = {}
    for check in checks:
        grounded = states.get(check.after, "ok") == "ok"
        found = _make(check) if grounded else _skipped(check, f"the check '{check.after}' has to succeed first")
        states[check.name] = found.state
        yield found


def _make(check: Check) -> Finding:
    faults: list[str] = []
    note = ""
    try:
        for found in check.find():
            if isinstance(found, Note):
                note = found
            else:
                faults.append(sentence(found))
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


def _skipped(check: Check, why: str) -> Finding:
    return Finding(check.name, check.title, "skipped", why=why)
