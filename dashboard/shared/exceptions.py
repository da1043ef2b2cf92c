"""Errors that a person is told about, in one sentence each.

DashboardError                  message: what was expected and what came; no path, key or stack
├── Invalid                     what was sent is wrong; `problems` may point at fields
├── Forbidden                   the actor lacks a right
├── NotFound                    no such thing
├── Conflict                    the thing is in another state than this asks for
│   ├── Outdated                somebody else changed the text meanwhile; it carries both texts
│   ├── WrongOffset             a chunk starts elsewhere than what was received ends; `expected` says where
│   └── WrongState              the row has left the state that a transition starts from
├── TooLarge                    over a limit of size
├── TooMany                     as many requests of this person wait as may
├── StorageFull                 the disk is, or would become, full
├── Unavailable                 the inference server does not answer
└── ClientGone                  nobody waits for the answer (client_gone)

STATUS maps each once, for the API and the pages alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class DashboardError(Exception):
    """Base of everything that a person is told about. details: what a server told beside the sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.details: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration, and where.

    field: of the form, "" for the whole. path, line: of the text; line 0 is unknown.
    """

    message: str
    field: str = ""
    path: str = ""
    line: int = 0
    severity: str = "error"  # or "warning"


class Invalid(DashboardError):
    """What was sent is wrong. `problems` point at the fields, where there are any."""

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
    """Another text came since the one that was edited was read. Whoever edited sees both, and loses nothing.

    base_text: what was edited; current_text: what it is by now, of release `current_release`, made by `current_by`.
    """

    def __init__(
        self, message: str, *, base_text: str, current_text: str, current_release: int, current_by: str
    ) -> None:
        super().__init__(message)
        self.base_text, self.current_text = base_text, current_text
        self.current_release, self.current_by = current_release, current_by


class NamesMoved(Conflict):
    """Somebody moved the same names of versions meanwhile. `merged`: as both have them, as asked where they differ."""

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
    DashboardError: 502,  # what an inference server says of itself
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
    """The HTTP status of an error: that of its nearest class in STATUS."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
