"""The kinds of long work: name -> import path of a function that takes a JobContext and returns a result (JSON).

A function must be safe to run again from the start: a worker may die at any moment, and its job is then queued anew.
"""

from collections.abc import Callable
from typing import Any

from django.utils.module_loading import import_string

from dashboard.exceptions import Invalid
from dashboard.jobs.context import JobContext

KINDS: dict[str, str] = {
    "inspect": "dashboard.jobs.inspect.run",
}


def load_kind(kind: str) -> Callable[[JobContext], dict[str, Any]]:
    if kind not in KINDS:
        raise Invalid(f"expected a job of kind {', '.join(sorted(KINDS))}, but got '{kind}'")
    return import_string(KINDS[kind])
