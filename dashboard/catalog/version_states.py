"""The states of a version's files, and the only functions that change them.

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
    MOVING      complete in at least one of these folders;    Job archive    `watch` queues the job again, which
                a copy to another disk is in .publish-*       or restore     completes the interrupted move
    ARCHIVED    archive/<name>/<version>                      the            nothing was under way
                                                              fingerprint
                                                              lacks them

If a move fails or is cancelled, the folder with the files decides between `published` and `archived`. Where the database failed
too, `watch` decides so later (versions.moves.moves_recover). `missing` happens when
somebody adopts a folder from which a version was removed by hand.
"""

from dashboard.models import Version
from dashboard.shared.choices import VersionState as State
from dashboard.shared.exceptions import WrongState
from dashboard.shared.transitions import Transition, move

_PERSON, _JOB = "an operator", "the job `archive` or `restore`"
TRANSITIONS = {
    "archive": Transition((State.PUBLISHED,), State.MOVING, _PERSON, "is not published"),
    "restore": Transition((State.ARCHIVED,), State.MOVING, _PERSON, "is not archived"),
    "published": Transition((State.MOVING,), State.PUBLISHED, _JOB, "is not being moved any more"),
    "archived": Transition((State.MOVING,), State.ARCHIVED, _JOB, "is not being moved any more"),
    "missing": Transition((State.PUBLISHED,), State.ARCHIVED, _PERSON, "is not published"),
}


def archive(version: Version) -> None:
    """Begin to move the files to the archive."""
    _move(version, "archive")


def restore(version: Version) -> None:
    """Begin to move the files back to the repository."""
    _move(version, "restore")


def published(version: Version) -> None:
    """Record that the files are in the repository."""
    _move(version, "published")


def archived(version: Version) -> None:
    """Record that the files are in the archive."""
    _move(version, "archived")


def missing(version: Version) -> None:
    """Record that a person removed the files and that the change was adopted."""
    _move(version, "missing", details={**version.details, "missing": True})


def _move(version: Version, event: str, **changes: object) -> None:
    transition = TRANSITIONS[event]
    if not move(version, transition, changes):
        raise WrongState(f"version {version.number} of '{version.model.name}' {transition.refusal}")
