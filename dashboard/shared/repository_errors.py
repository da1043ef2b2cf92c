"""Raises the errors of the package `repository` as the dashboard's own."""

import contextlib
from collections.abc import Iterator

from dashboard.shared import exceptions
from repository.core.errors import CaptureUnusable, Conflict, NoSpace, NotFound, RepositoryError, Unreachable

_MEANING: dict[type[RepositoryError], type[exceptions.DashboardError]] = {
    NotFound: exceptions.NotFound,
    Conflict: exceptions.Conflict,
    NoSpace: exceptions.StorageFull,
    CaptureUnusable: exceptions.Conflict,
    Unreachable: exceptions.Unavailable,
    RepositoryError: exceptions.Invalid,
}


@contextlib.contextmanager
def repository_errors() -> Iterator[None]:
    """Raise a RepositoryError of the block as the DashboardError of the same meaning; also a decorator of services."""
    try:
        yield
    except RepositoryError as error:
        kind = next(_MEANING[kind] for kind in type(error).__mro__ if kind in _MEANING)
        raise kind(error.message) from error
