"""The states of an upload, and the only functions that move it from one to the next.

     upload_create
           |
           v
       RECEIVING <-- receive: a chunk --+          cancel: from RECEIVING, RECEIVED, INSPECTING, INSPECTED, FAILED,
           |    +-----------------------+                  CONVERTING to CANCELLED
           |     <-- extend: more files, from FAILED  expire: from the same
           |     <-- fetch: a job copies the files    lose: a fetched file has changed, from RECEIVING to FAILED
           | complete                                         to EXPIRED
           v
       RECEIVED <------------------------------ converted: other files ----+
           |                                                               |
           | inspect                                                       |
           |    +---- reject: from RECEIVED, INSPECTING --> FAILED -- convert --> CONVERTING
           v    |                                              ^                 |    |    ^
       INSPECTING <-- inspect --+                              +---- decline ----+    |    |
           |    +---------------+  again: its worker died                             |    |
           | accept                                                                   |    |
           v                                                                          |    |
       INSPECTED <------------------------------- keep: nothing was converted --------+    |
           |   ^ +-------------------------------------- convert --------------------------+
           |   |
           |   +-- take_back --------+
           | publish                 |
           v                         |
       PUBLISHING <-- decide: text --+
           |    +--------------------+
           | finish
           v
       PUBLISHED

The contents of each state, and the effect of a SIGKILL of the process that works on it. `folder` is data/staging/<id>/. The row
of an upload is never deleted. Only cancelled and expired uploads lose their UploadFiles.

    state       on disk                                other rows                after a SIGKILL
    RECEIVING   folder/files/<number>: `received`      -                         the client asks for the offset and continues;
                bytes of each, perhaps a little more                             later bytes are overwritten
                the same, if files are fetched         Job fetch, running        `watch` queues the job again; it goes on behind
                                                                                 the `received` bytes
    RECEIVED    folder/files, whole                    Job inspect, queued       `watch` announces the job again
    INSPECTING  folder/source and folder/version,      Job inspect, running      `watch` queues the job again; it begins again
                being made from folder/files                                     from folder/files
    INSPECTED   folder/version, ready                  proposal, contents        nothing was under way
    PUBLISHING  folder/version; folder/publish.lock    Model, Job publish;       `watch` queues the job again; it records the
                held; .publish-*: hard links of the    publication, with the     version if it is in place, or else stages it
                files, then, by one rename,            decided text from just    again; if the job has ended meanwhile,
                models/<name>/<version>                before the rename         publications_recover does that
    PUBLISHED   models/<name>/<version>; folder is     Version, Release,         uploads_expire removes a folder that is left
                being removed                          AuditEntry
    CONVERTING  folder/source; folder/conversion,      Job convert, queued or    `watch` queues the job again; it begins again
                being made; then its files, under      running                   from folder/source; the rows of the files
                new numbers, in folder/files                                     change in one transaction
    FAILED      as before                              error; a proposal with    nothing was under way
                                                       all faults, if the files
                                                       could be read
    CANCELLED   folder is being removed                AuditEntry                uploads_expire removes the folder
    EXPIRED     folder is being removed                error                     uploads_expire removes the folder

The model's row has two more fields that a publication writes. `fingerprint` identifies the content of its folder when it was
last adopted. `generation` grows, so that `watch` sees the change. Both are written with the Version, in the transaction of
`finish`.
"""

import contextlib
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from dashboard.models import Job, Upload
from dashboard.models.upload_json import Contents, Conversion, Proposal, Publication
from dashboard.shared.choices import UploadState as State
from dashboard.shared.exceptions import WrongState
from dashboard.shared.transitions import Transition, move
from repository.files import storage

# The states that a person can continue or wait for, and the states that can be cancelled or expire.
UNFINISHED = (State.RECEIVING, State.RECEIVED, State.INSPECTING, State.INSPECTED, State.CONVERTING, State.PUBLISHING)
DISPOSABLE = (State.RECEIVING, State.RECEIVED, State.INSPECTING, State.INSPECTED, State.CONVERTING, State.FAILED)
# States that need the folder.
KEPT = (*UNFINISHED, State.FAILED)

_PERSON, _INSPECT, _PUBLISH, _WATCH = "whoever uploads", "the job `inspect`", "the job `publish`", "`watch`"
_FETCH = "the job `fetch`"
_CONVERT = "the job `convert`"
_NOT_INSPECTED = "the upload is not being inspected any more"
_NOT_CONVERTING = "the upload is not being converted any more"
_NOT_PUBLISHING = "the upload is not being published any more"
TRANSITIONS = {
    "receive": Transition((State.RECEIVING,), State.RECEIVING, _PERSON, "the upload takes no more"),
    "fetch": Transition((State.RECEIVING,), State.RECEIVING, _PERSON, "the upload's files cannot be fetched"),
    "lose": Transition((State.RECEIVING,), State.FAILED, _FETCH, "the upload's files are not fetched any more"),
    "extend": Transition((State.FAILED,), State.RECEIVING, _PERSON, "the upload takes no more files"),
    "complete": Transition((State.RECEIVING,), State.RECEIVED, _PERSON, "the upload cannot go on"),
    "inspect": Transition((State.RECEIVED, State.INSPECTING), State.INSPECTING, _INSPECT, _NOT_INSPECTED),
    "accept": Transition((State.INSPECTING,), State.INSPECTED, _INSPECT, _NOT_INSPECTED),
    "reject": Transition((State.RECEIVED, State.INSPECTING), State.FAILED, _INSPECT, _NOT_INSPECTED),
    "convert": Transition((State.INSPECTED, State.FAILED), State.CONVERTING, _PERSON, "the upload cannot be converted"),
    "converted": Transition((State.CONVERTING,), State.RECEIVED, _CONVERT, _NOT_CONVERTING),
    "decline": Transition((State.CONVERTING,), State.FAILED, _CONVERT, _NOT_CONVERTING),
    "keep": Transition((State.CONVERTING,), State.INSPECTED, _CONVERT, _NOT_CONVERTING),
    "publish": Transition((State.INSPECTED,), State.PUBLISHING, _PERSON, "the upload cannot be published"),
    "decide": Transition((State.PUBLISHING,), State.PUBLISHING, _PUBLISH, _NOT_PUBLISHING),
    "take_back": Transition((State.PUBLISHING,), State.INSPECTED, _PUBLISH, _NOT_PUBLISHING),
    "finish": Transition((State.PUBLISHING,), State.PUBLISHED, _PUBLISH, _NOT_PUBLISHING),
    "cancel": Transition(DISPOSABLE, State.CANCELLED, _PERSON, "the upload cannot be cancelled"),
    "expire": Transition(DISPOSABLE, State.EXPIRED, _WATCH, "the upload cannot expire"),
}


def receive(upload: Upload) -> None:
    """Postpone the expiry, before a chunk is written."""
    _move(upload, "receive", expires_at=_expiry())


def fetch(upload: Upload, *, job: Job) -> None:
    """Record that `job` copies the files from the upload's source. Raises WrongState if another job was recorded meanwhile."""
    before = Q(job=upload.job_id) if upload.job_id is not None else Q(job__isnull=True)
    _move(upload, "fetch", where=before, job=job, error="", expires_at=_expiry())


def lose(upload: Upload, *, reason: str) -> None:
    """Record that a file changed while it was fetched, so that the upload cannot go on."""
    _move(upload, "lose", error=reason)


def complete(upload: Upload, *, job: Job) -> None:
    """Record that all bytes have arrived, and that `job` will inspect them."""
    _move(upload, "complete", job=job)


def inspect(upload: Upload) -> None:
    """Record that an inspection begins, maybe again."""
    _move(upload, "inspect")


def extend(upload: Upload) -> None:
    """Reopen the upload for missing files; the findings about the present files are removed."""
    _move(upload, "extend", error="", proposal={}, contents={}, expires_at=_expiry())


def accept(upload: Upload, *, contents: Contents, proposal: Proposal, conversion: Conversion | None = None) -> None:
    """Record that the files can be published. conversion: with the recipes that take them."""
    conversion = upload.conversion if conversion is None else conversion
    _move(upload, "accept", contents=contents, proposal=proposal, conversion=conversion)


def reject(
    upload: Upload, *, reason: str, proposal: Proposal | None = None, conversion: Conversion | None = None
) -> None:
    """Record that the files cannot be published, with the reason. proposal: the findings, if the inspection has any.
    conversion: with the recipes that take the files."""
    conversion = upload.conversion if conversion is None else conversion
    _move(upload, "reject", error=reason, proposal=proposal or {}, conversion=conversion)


def convert(upload: Upload, *, conversion: Conversion, job: Job) -> None:
    """Record that `job` will convert the files."""
    _move(upload, "convert", conversion=conversion, job=job, expires_at=_expiry())


def converted(upload: Upload, *, conversion: Conversion, job: Job) -> None:
    """Record that other files have taken the place of the present ones, in the transaction that writes their rows, and that
    `job` will inspect them."""
    nothing: dict[str, object] = {"proposal": {}, "contents": {}, "error": ""}
    _move(upload, "converted", where=None, conversion=conversion, job=job, expires_at=_expiry(), **nothing)


def decline(upload: Upload, *, reason: str) -> None:
    """Record why the conversion came to nothing. The upload is as it was before: inspected, or failed."""
    event = "keep" if upload.contents else "decline"
    _move(upload, event, conversion={**upload.conversion, "error": reason}, expires_at=_expiry())


def publish(upload: Upload, *, publication: Publication, job: Job) -> None:
    """Record that `job` will publish the upload under a reserved number."""
    _move(upload, "publish", publication=publication.to_json(), job=job, error="")


def decide(upload: Upload, *, publication: Publication) -> None:
    """Store the decided text of config.pbtxt before the version is placed, to finish the publication after a crash."""
    _move(upload, "decide", publication=publication.to_json())


def take_back(upload: Upload, *, reason: str) -> None:
    """Record that nothing was published, with the reason; the upload can be published again."""
    _move(upload, "take_back", error=reason, expires_at=_expiry())


def finish(upload: Upload) -> None:
    """Record the publication, in the transaction that places and records the version."""
    _move(upload, "finish", publication={})


def cancel(upload: Upload) -> None:
    _move(upload, "cancel")


def expire(upload: Upload, *, now: datetime) -> None:
    """Expire an upload, unless a person has just continued it."""
    reason = "Nobody continued this upload in time, so its files were removed."
    _move(upload, "expire", where=Q(expires_at__lt=now), error=reason)


def refuse_unless(upload: Upload, event: str) -> None:
    """Raise WrongState if the state that was read does not allow `event`. It saves useless work; the transition also checks."""
    transition = TRANSITIONS[event]
    if upload.state not in transition.before:
        raise _wrong(transition, upload.state)


def initial() -> dict[str, Any]:
    """Return the fields of a new row that belong to its state."""
    return {"state": State.RECEIVING, "expires_at": _expiry()}


def held(upload: Upload, *, wait_s: float = 0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock of an upload that is being published, so that one process at a time touches its files.

    A worker that was wrongly taken for dead may still be at work when the next attempt begins.
    Raises Conflict if the lock is not free within `wait_s` seconds.
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
    """Return the expiry of an upload that is continued now."""
    return timezone.now() + timedelta(hours=settings.UPLOAD_EXPIRY_HOURS)
