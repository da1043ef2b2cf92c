"""Errors that people read, in one sentence each.

DashboardError                  message: the expected and the actual value; no path, key or stack
├── Invalid                     the input is wrong; `problems` may point at fields
├── Forbidden                   the actor lacks a right
├── NotFound                    the thing does not exist
├── Conflict                    the thing is in a state that does not allow this
│   ├── Outdated                somebody else changed the text meanwhile; it carries both texts
│   ├── WrongOffset             a chunk does not start where the received bytes end; `expected` is that offset
│   └── WrongState              the row has left the state that a transition starts from
├── TooLarge                    over a limit of size
├── TooMany                     this person has too many requests waiting
├── StorageFull                 the disk is, or would become, full
├── Unavailable                 the inference server, or a store in the cloud, does not answer
└── ClientGone                  the client has disconnected (client_gone)

STATUS gives each its HTTP status, for the API and the pages alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class DashboardError(Exception):
    """Base of all errors that people read. details: fields that an inference server sent with its message."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a configuration, and its place.

    field: the field of the form, "" for the whole form. path, line: the place in the text; line 0 if it is unknown.
    """

    message: str
    field: str = ""
    path: str = ""
    line: int = 0
    severity: str = "error"  # or "warning"


class Invalid(DashboardError):
    """The input is wrong. problems: the faults at single fields, if the input has fields."""

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.problems = list(problems)

    @classmethod
    def at(cls, field: str, message: str) -> "Invalid":
        """Return the error of one field."""
        return cls(message, [Problem(message, field=field)])


class Forbidden(DashboardError):
    pass


class NotFound(DashboardError):
    pass


class Conflict(DashboardError):
    pass


class Outdated(Conflict):
    """Somebody else changed the text while this person edited it. The editor shows both texts, so nothing is lost.

    base_text: the text that was edited; current_text: the newer text, of release `current_release`, made by `current_by`.
    """

    def __init__(
        self, message: str, *, base_text: str, current_text: str, current_release: int, current_by: str
    ) -> None:
        super().__init__(message)
        self.base_text, self.current_text = base_text, current_text
        self.current_release, self.current_by = current_release, current_by


class NamesMoved(Conflict):
    """Somebody else changed the same aliases meanwhile. merged: all aliases with both changes, and with the values of this
    request where the changes conflict."""

    def __init__(self, message: str, *, merged: dict[str, int], current_release: int) -> None:
        super().__init__(message)
        self.merged, self.current_release = merged, current_release


class WrongOffset(Conflict):
    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"expected the chunk at offset {expected}, but it starts at {got}")
        self.expected = expected


class WrongState(Conflict):
    pass


class TooLarge(DashboardError):
    pass


class TooMany(DashboardError):
    pass


class StorageFull(DashboardError):
    pass


class Unavailable(DashboardError):
    pass


STATUS: dict[type[DashboardError], int] = {
    DashboardError: 502,  # an error of the inference server
    Invalid: 400,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    Outdated: 409,
    WrongOffset: 409,
    WrongState: 409,
    TooLarge: 413,
    TooMany: 429,
    Unavailable: 503,
    StorageFull: 507,
}


def status_of(error: DashboardError) -> int:
    """Return the HTTP status of an error: the entry of its nearest class in STATUS."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
