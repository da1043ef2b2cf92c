"""The states of an upload, and the only functions that move it from one to the next.

     upload_create
           |
           v
       RECEIVING <-- receive: a chunk --+          cancel: from RECEIVING, RECEIVED, INSPECTING, INSPECTED, FAILED
           |    +-----------------------+                  to CANCELLED
           |     <-- extend: more files, from FAILED  expire: from the same
           | complete                                         to EXPIRED
           v
       RECEIVED ------ reject -----+
           |                       |
           | inspect               v
           v                     FAILED
       INSPECTING <-- inspect --+  ^
           |   |    +-----------+  |  inspect again: its worker died
           |   +------ reject -----+
           | accept
           v
       INSPECTED <---- take_back ----+
           |                         |
           | publish                 |
           v                         |
       PUBLISHING <-- decide: text --+
           |    +--------------------+
           | finish
           v
       PUBLISHED

What there is in each state, and what happens after a SIGKILL of whoever works on it. `folder` is data/staging/<id>/; every
row of an upload and its UploadFiles stays for good.

    state       on disk                                rows beside it            after a SIGKILL
    RECEIVING   folder/files/<number>: `received`      -                         the client asks for the offset and goes on;
                bytes of each, perhaps a little more                             what lies beyond it is written over
    RECEIVED    folder/files, whole                    Job inspect, queued       `watch` announces the job again
    INSPECTING  folder/source and folder/version,      Job inspect, running      `watch` queues the job again; it starts anew
                being made from folder/files                                     from folder/files
    INSPECTED   folder/version, ready                  proposal, contents        nothing was under way
    PUBLISHING  folder/version; folder/publish.lock    Model, Job publish;       `watch` queues the job again; it records the
                held; .publish-*: the files by a       publication, with the     version that lies in place, or else stages it
                second name, then, by one rename,      decided text from just    anew. Where the job has ended meanwhile,
                models/<name>/<version>                before the rename         publications_recover does either
    PUBLISHED   models/<name>/<version>; folder is     Version, Release,         a folder that is left is cleared away
                being removed                          AuditEntry                by uploads_expire
    FAILED      as before                              error; a proposal with    nothing was under way
                                                       all that is wrong, where
                                                       the files could be read
    CANCELLED   folder is being removed                AuditEntry                uploads_expire clears the folder away
    EXPIRED     folder is being removed                error                     the same, in its next turn

The model's row has two more figures that are not the upload's: `fingerprint`, what its folder held when it was last adopted,
and `generation`, by which `watch` tells the servers; both are written with the Version, in the transaction of `finish`.
"""

import contextlib
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from dashboard.models import Job, Upload
from dashboard.models.upload_json import Contents, Proposal, Publication
from dashboard.shared.choices import UploadState as State
from dashboard.shared.exceptions import WrongState
from dashboard.shared.transitions import Transition, move
from repository.files import storage

# Those that a person can still go on with, or wait for; and those that can be cancelled, or expire.
UNFINISHED = (State.RECEIVING, State.RECEIVED, State.INSPECTING, State.INSPECTED, State.PUBLISHING)
DISPOSABLE = (State.RECEIVING, State.RECEIVED, State.INSPECTING, State.INSPECTED, State.FAILED)
# Those whose folder is needed.
KEPT = (*UNFINISHED, State.FAILED)

_PERSON, _INSPECT, _PUBLISH, _WATCH = "whoever uploads", "the job `inspect`", "the job `publish`", "`watch`"
_NOT_INSPECTED = "the upload is not being inspected any more"
_NOT_PUBLISHING = "the upload is not being published any more"
TRANSITIONS = {
    "receive": Transition((State.RECEIVING,), State.RECEIVING, _PERSON, "the upload takes no more"),
    "extend": Transition((State.FAILED,), State.RECEIVING, _PERSON, "the upload takes no more files"),
    "complete": Transition((State.RECEIVING,), State.RECEIVED, _PERSON, "the upload cannot go on"),
    "inspect": Transition((State.RECEIVED, State.INSPECTING), State.INSPECTING, _INSPECT, _NOT_INSPECTED),
    "accept": Transition((State.INSPECTING,), State.INSPECTED, _INSPECT, _NOT_INSPECTED),
    "reject": Transition((State.RECEIVED, State.INSPECTING), State.FAILED, _INSPECT, _NOT_INSPECTED),
    "publish": Transition((State.INSPECTED,), State.PUBLISHING, _PERSON, "the upload cannot be published"),
    "decide": Transition((State.PUBLISHING,), State.PUBLISHING, _PUBLISH, _NOT_PUBLISHING),
    "take_back": Transition((State.PUBLISHING,), State.INSPECTED, _PUBLISH, _NOT_PUBLISHING),
    "finish": Transition((State.PUBLISHING,), State.PUBLISHED, _PUBLISH, _NOT_PUBLISHING),
    "cancel": Transition(DISPOSABLE, State.CANCELLED, _PERSON, "the upload cannot be cancelled"),
    "expire": Transition(DISPOSABLE, State.EXPIRED, _WATCH, "the upload cannot expire"),
}


def receive(upload: Upload) -> None:
    """A chunk is about to be written, which puts the expiry off."""
    _move(upload, "receive", expires_at=_expiry())


def complete(upload: Upload, *, job: Job) -> None:
    """All bytes are here; `job` will inspect them."""
    _move(upload, "complete", job=job)


def inspect(upload: Upload) -> None:
    """The inspection begins, perhaps not for the first time."""
    _move(upload, "inspect")


def extend(upload: Upload) -> None:
    """Files that were missing are about to come; what was found of the others is forgotten."""
    _move(upload, "extend", error="", proposal={}, contents={}, expires_at=_expiry())


def accept(upload: Upload, *, contents: Contents, proposal: Proposal) -> None:
    """The inspection has read the files, and they can be published."""
    _move(upload, "accept", contents=contents, proposal=proposal)


def reject(upload: Upload, *, reason: str, proposal: Proposal | None = None) -> None:
    """The files cannot be published, for a reason that a person reads. proposal: all that was found, where it came so far."""
    _move(upload, "reject", error=reason, proposal=proposal or {})


def publish(upload: Upload, *, publication: Publication, job: Job) -> None:
    """A number is reserved, and `job` will publish the upload under it."""
    _move(upload, "publish", publication=publication.to_json(), job=job, error="")


def decide(upload: Upload, *, publication: Publication) -> None:
    """The text of config.pbtxt is decided: from now on the version may lie in place, and is finished after a crash."""
    _move(upload, "decide", publication=publication.to_json())


def take_back(upload: Upload, *, reason: str) -> None:
    """Nothing was published, for a reason that a person reads; the upload can be published again."""
    _move(upload, "take_back", error=reason, expires_at=_expiry())


def finish(upload: Upload) -> None:
    """The version is placed and recorded in the caller's transaction, or not at all."""
    _move(upload, "finish", publication={})


def cancel(upload: Upload) -> None:
    _move(upload, "cancel")


def expire(upload: Upload, *, now: datetime) -> None:
    """Unless somebody continued the upload in this moment."""
    reason = "Nobody continued this upload in time, so its files were removed."
    _move(upload, "expire", where=Q(expires_at__lt=now), error=reason)


def refuse_unless(upload: Upload, event: str) -> None:
    """Raise WrongState where `event` is not for the state that the upload was read in: before a long work, not in place of
    the transition, which looks again."""
    transition = TRANSITIONS[event]
    if upload.state not in transition.before:
        raise _wrong(transition, upload.state)


def initial() -> dict[str, Any]:
    """The fields of a row that upload_create makes."""
    return {"state": State.RECEIVING, "expires_at": _expiry()}


def held(upload: Upload, *, wait_s: float = 0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of an upload that is being published, so that one process at a time touches its files.

    A worker that was taken for lost may still be at work when the next attempt begins. Conflict after `wait_s`.
    """
    return storage.locked(upload.folder / "publish.lock", "this upload", wait_s=wait_s)


def _move(upload: Upload, event: str, *, where: Q | None = None, **changes: object) -> None:
    transition = TRANSITIONS[event]
    if not move(upload, transition, changes, where=where):
        state = Upload.objects.values_list("state", flat=True).get(pk=upload.pk)
        raise _wrong(transition, state)


def _wrong(transition: Transition, state: str) -> WrongState:
    return WrongState(f"{transition.refusal}: it is {State(state).label.lower()}")


def _expiry() -> datetime:
    """Until when an upload of now waits to be continued."""
    return timezone.now() + timedelta(hours=settings.UPLOAD_EXPIRY_HOURS)
