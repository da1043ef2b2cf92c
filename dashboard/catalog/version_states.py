"""The states of a version's files, and the only functions that move it from one to the next.

    publication, adoption of a folder
            |
            v
        PUBLISHED --- archive ---> MOVING --- archived ---> ARCHIVED
          |   ^                    |    ^                    |   ^
          |   +---- published -----+    +----- restore ------+   |
          +---------------------- missing ----------------------+

    state       on disk                                       row            after a SIGKILL
    PUBLISHED   models/<name>/<version>                       the model's    nothing was under way
                                                              fingerprint
                                                              has its files
    MOVING      there, or archive/<name>/<version>, whole     Job archive    `watch` queues the job again: a move that was
                in one of them at least; a copy on its way    or restore     broken off goes on where it stood
                to another disk in .publish-*
    ARCHIVED    archive/<name>/<version>                      the            nothing was under way
                                                              fingerprint
                                                              has not

A move that is cancelled or fails is answered by where the files are then: `published` or `archived`. `missing` is adopting a
folder from which a person took a version by hand.
"""

from dashboard.models import Version
from dashboard.shared.choices import VersionState as State
from dashboard.shared.exceptions import WrongState
from dashboard.shared.transitions import Transition, move

_PERSON, _JOB = "whoever operates", "the job `archive` or `restore`"
TRANSITIONS = {
    "archive": Transition((State.PUBLISHED,), State.MOVING, _PERSON, "is not published"),
    "restore": Transition((State.ARCHIVED,), State.MOVING, _PERSON, "is not archived"),
    "published": Transition((State.MOVING,), State.PUBLISHED, _JOB, "is not being moved any more"),
    "archived": Transition((State.MOVING,), State.ARCHIVED, _JOB, "is not being moved any more"),
    "missing": Transition((State.PUBLISHED,), State.ARCHIVED, _PERSON, "is not published"),
}


def archive(version: Version) -> None:
    """The files are about to leave the repository."""
    _move(version, "archive")


def restore(version: Version) -> None:
    """The files are about to come back."""
    _move(version, "restore")


def published(version: Version) -> None:
    """The files lie in the repository."""
    _move(version, "published")


def archived(version: Version) -> None:
    """The files lie in the archive."""
    _move(version, "archived")


def missing(version: Version) -> None:
    """A person took the files away, and that was adopted."""
    _move(version, "missing", details={**version.details, "missing": True})


def _move(version: Version, event: str, **changes: object) -> None:
    transition = TRANSITIONS[event]
    if not move(version, transition, changes):
        raise WrongState(f"version {version.number} of '{version.model.name}' {transition.refusal}")
