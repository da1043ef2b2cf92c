"""The errors of a repository, its configurations, and files that are put into it.

RepositoryError              one sentence for the caller, a person or a client
 ├─ InvalidName              a model name or version number that may not become a path
 ├─ InvalidConfig            a configuration that does not parse or breaks a rule (line, column, field, problems)
 ├─ InvalidExample           an example or golden request that is malformed, or has malformed tensors
 ├─ InvalidArchive           a model archive that is malformed, or lacks a file of its manifest
 ├─ NotFound                 no such model, version or file
 ├─ Conflict                 a version or model that exists already, or a folder that another publication holds
 ├─ NoSpace                  the disk would fill (needed, free)
 ├─ Unreachable              a repository in the cloud that cannot be listed or copied now
 └─ UnsafePath               a path that leads out of its folder: a symbolic link, "..", an absolute name
     └─ UnsafeArchive        an archive that contains an unsafe path, or whose unpacked files would be too large

A message contains no path of the local machine: it names the model, the version or the file inside the version.
"""

from typing import NamedTuple


class Problem(NamedTuple):
    """A broken rule. `field` is a path such as `input[0].dims[1]`; "" means the whole configuration."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class RepositoryError(Exception):
    """An error that the caller can understand and correct."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidName(RepositoryError):
    """A name or version number that may not become a path."""


class InvalidConfig(RepositoryError):
    """A configuration that does not parse (line and column count from 1) or breaks rules (problems)."""

    def __init__(
        self, message: str, *, line: int = 0, column: int = 0, field: str = "", problems: tuple[Problem, ...] = ()
    ) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.field = field
        self.problems = problems


class InvalidExample(RepositoryError):
    """A malformed example or golden request, or one with malformed tensors."""


class InvalidArchive(RepositoryError):
    """A malformed model archive, or one that lacks a file of its manifest."""


class NotFound(RepositoryError):
    """No such model, version or file."""


class Conflict(RepositoryError):
    """The model or version exists already: versions are immutable and their numbers are never used again."""


class NoSpace(RepositoryError):
    """The disk would become full. Sizes in bytes."""

    def __init__(self, needed: int, free: int, reserve: int = 0) -> None:
        """free: the free bytes, without the reserve."""
        beside = f" in addition to the {_mib(reserve)} that are kept for the database and logs" if reserve else ""
        super().__init__(f"{_mib(needed)} are needed on the disk, but only {_mib(free)} are free{beside}")
        self.needed = needed
        self.free = free


class Unreachable(RepositoryError):
    """A repository in the cloud that cannot be listed or copied now; its last listing remains valid."""


class UnsafePath(RepositoryError):
    """A path that would leave the folder it belongs to."""


class UnsafeArchive(UnsafePath):
    """An archive that would write outside its folder or fill the disk."""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB" if not 0 < size < 1 << 20 else f"{-(-size // 1024)} KiB"


class CaptureUnusable(RepositoryError):
    """A file of a capture cannot be read, or the package that reads it is missing."""
