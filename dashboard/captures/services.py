"""Starts, stops and deletes captures, and decides who may read them.

The folder of a capture decides what the server does. So its file is written in the transaction that makes or changes the row,
and a deletion first renames the folder, which ends the capture and hides it from every reader at once.
"""

import contextlib
import secrets
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import orjson
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import CLIENT_DATA, SYSTEM, Actor, Right, require
from dashboard.accounts.tokens import account_name
from dashboard.captures.masks import checked_masks, datatypes_of
from dashboard.captures.selectors import may_read
from dashboard.models import ApiToken, Capture, Model
from dashboard.shared.exceptions import Conflict, Forbidden, Invalid, StorageFull
from dashboard.shared.repository_errors import repository_errors
from repository.core.capture_files import PACKAGE, has_package
from repository.core.captures import WANTED, Wanted, counters_path
from repository.files import storage

MOST_HOURS = 30 * 24
MOST_KEPT_DAYS = 90
MOST_MIB = 64 << 10
MOST_RUNNING = 8  # captures of all models, because the server bounds the memory of each
MOST_VERSIONS = MOST_ACCOUNTS = 100
_RESERVE_BYTES = 1 << 30
_DELETED = ".deleted-"


@repository_errors()
def capture_start(
    *,
    model: Model,
    actor: Actor,
    percent: float = 5.0,
    hours: float = 24.0,
    errors_only: bool = False,
    versions: Sequence[int] = (),
    accounts: Sequence[str] = (),
    mib: int = 1024,
    keep_days: int = 30,
    inputs: Mapping[str, str] | None = None,
    outputs: Mapping[str, str] | None = None,
    consent: bool = False,
) -> Capture:
    """Let the server keep a share of the requests that clients send to a model, with their answers.

    accounts: only requests with a token of these people, or with these tokens ("person: token"). keep_days: how long the
    capture is kept after its end. inputs, outputs: the masks (captures.masks). consent: the actor confirms that they may keep
    such data.
    Raises Forbidden without the right to see the data of clients. Raises Invalid if a value is out of range. Raises Conflict if
    too many captures run, or the package that writes them is missing.
    """
    require(actor, CLIENT_DATA)
    if not may_read(actor, model):
        raise Forbidden(f"only the readers of the captures of '{model.name}' may start one")
    if not consent:
        raise Invalid.at("consent", "confirm that you may keep what clients send before it is kept")
    _within("percent", percent, 100, "a share over 0 and at most 100 %")
    _within("hours", hours, MOST_HOURS, f"a time over 0 and at most {MOST_HOURS} hours")
    _within("mib", mib, MOST_MIB, f"1 to {MOST_MIB} MiB")
    _within("keep_days", keep_days, MOST_KEPT_DAYS, f"1 to {MOST_KEPT_DAYS} days")
    known = set(model.versions.values_list("number", flat=True))
    if unknown := [number for number in versions[:MOST_VERSIONS] if number not in known]:
        raise Invalid.at("versions", f"'{model.name}' has no version {unknown[0]}")
    accounts = sorted({one.strip() for one in accounts[:MOST_ACCOUNTS]})
    _refuse_unknown_accounts(accounts)
    if not has_package():
        raise Conflict(PACKAGE)
    known_inputs, known_outputs = datatypes_of(model)
    ends_at = timezone.now() + timedelta(hours=hours)
    wanted = Wanted(
        model=model.name,
        share=percent / 100,
        errors_only=errors_only,
        versions=sorted(set(versions)),
        accounts=accounts,
        until=ends_at.timestamp(),
        bytes=mib << 20,
        reserve=_RESERVE_BYTES if settings.DISK_RESERVE_BYTES is None else settings.DISK_RESERVE_BYTES,
        salt=secrets.token_hex(16),
        inputs=checked_masks("inputs", inputs or {}, known_inputs),
        outputs=checked_masks("outputs", outputs or {}, known_outputs),
        stopped=False,
    )
    with transaction.atomic():
        model = Model.locked(model.pk)
        if sum(one.running for one in Capture.objects.filter(ends_at__gt=timezone.now())) >= MOST_RUNNING:
            raise Conflict(f"{MOST_RUNNING} captures are running: stop one first")
        capture = Capture.objects.create(
            model=model,
            wanted=wanted,
            ends_at=ends_at,
            keep_until=ends_at + timedelta(days=keep_days),
            created_by=actor.user,
            created_by_name=actor.name,
        )
        what = ("failed requests" if errors_only else "requests") + (f" of {', '.join(accounts)}" if accounts else "")
        audit_record(
            actor=actor,
            action="capture.start",
            model=model,
            summary=f"Began to capture {percent:g} % of the {what} to {model.name} for {hours:g} h",
            after={"capture": str(capture.pk), "wanted": {**wanted, "salt": ""}},
        )
        _write_wanted(capture)
    return capture


@repository_errors()
def capture_stop(*, capture: Capture, actor: Actor) -> Capture:
    """End a capture; what it has kept stays. Does nothing if it has ended."""
    require(actor, CLIENT_DATA)
    with transaction.atomic():
        Model.locked(capture.model_id)
        capture.refresh_from_db()
        if capture.running:
            capture.wanted["stopped"] = True
            capture.save(update_fields=["wanted"])
            audit_record(
                actor=actor,
                action="capture.stop",
                model=capture.model,
                summary=f"Ended a capture of requests to {capture.model.name}",
                after={"capture": str(capture.pk)},
            )
            _write_wanted(capture)
    return capture


def capture_delete(*, capture: Capture, actor: Actor) -> None:
    """Delete a capture with all that was kept. The server stops it, if it runs. Raises StorageFull, and deletes nothing, if
    the disk is read-only or fails."""
    require(actor, CLIENT_DATA)
    with transaction.atomic():
        model = Model.locked(capture.model_id)
        counts = capture.counts
        audit_record(
            actor=actor,
            action="capture.delete",
            model=model,
            summary=f"Deleted a capture of {counts['written'] if counts else 0} requests to {model.name}",
            before={"capture": str(capture.pk)},
        )
        folder = capture.folder
        capture.delete()
        try:
            hidden = _hide(folder)  # last: only a folder that cannot be renamed may keep the row
        except OSError as error:
            raise StorageFull(f"the capture cannot be deleted from the disk: {error.strerror}") from None
    if hidden is not None:
        shutil.rmtree(hidden, ignore_errors=True)  # what is left is deleted by captures_expire


def capture_readers_set(*, model: Model, actor: Actor, readers: Sequence[str]) -> Model:
    """Let only these people read the captures of a model, by their names; [] lets everybody who may see the data of clients.

    Raises Invalid for an unknown name."""
    require(actor, Right.ADMINISTER)
    people = list(User.objects.filter(username__in=readers))
    if unknown := sorted(set(readers) - {one.get_username() for one in people}):
        raise Invalid.at("readers", f"there is no person '{unknown[0][:150]}'")
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = sorted(one.get_username() for one in model.capture_readers.all())
        after = sorted(one.get_username() for one in people)
        if before != after:
            model.capture_readers.set(people)
            audit_record(
                actor=actor,
                action="capture.readers",
                model=model,
                summary=f"Decided who may read captures of {model.name}: {', '.join(after) or 'all who may operate'}",
                before={"readers": before},
                after={"readers": after},
            )
    return model


def captures_expire() -> int:
    """Delete the captures whose time is over, and folders without a capture. Return the number of captures.

    Raises StorageFull at the end if the disk refuses to delete some; they are tried again in the next run."""
    over = list(Capture.objects.filter(keep_until__lte=timezone.now()).select_related("model"))
    refused: StorageFull | None = None
    for capture in over:
        try:
            capture_delete(capture=capture, actor=SYSTEM)
        except StorageFull as error:
            refused = error
    root = Path(settings.CAPTURE_DIR)
    for folder in list(root.iterdir()) if root.is_dir() else []:
        hidden = _hide(folder) if _is_orphan(folder) else folder
        if hidden is not None and hidden.name.startswith(_DELETED):
            shutil.rmtree(hidden, ignore_errors=True)
    if refused is not None:
        raise refused
    return len(over)


def _is_orphan(folder: Path) -> bool:
    """Return whether a folder belongs to a capture that was deleted with its model.

    A new capture has its folder a moment before others see its row. The server may still write to that folder, so the age is
    that of the file that starts a capture."""
    wanted = folder / WANTED
    try:
        begun = (wanted if wanted.exists() else folder).stat().st_mtime
        return begun < _a_minute_ago() and not Capture.objects.filter(pk=UUID(folder.name)).exists()
    except (ValueError, OSError):
        return False


def _a_minute_ago() -> float:
    return timezone.now().timestamp() - 60


def _write_wanted(capture: Capture) -> None:
    """Tell the server what to keep. Called last in a transaction, which a full disk undoes."""
    try:
        capture.folder.mkdir(mode=0o700, exist_ok=True)
        storage.write_atomic(capture.folder / WANTED, orjson.dumps(capture.wanted), mode=0o600)
    except OSError as error:
        raise StorageFull(f"the capture cannot be written to the disk: {error.strerror}") from None


def _hide(folder: Path) -> Path | None:
    """Rename a folder, so that the server and all readers lose it at once. Return its new path, or None if it is gone."""
    counters_path(folder).unlink(missing_ok=True)
    hidden = folder.with_name(_DELETED + folder.name)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(hidden)
        return hidden
    return None


def _refuse_unknown_accounts(accounts: Sequence[str]) -> None:
    if accounts and not settings.REQUIRE_TOKENS:
        raise Conflict(
            "requests have no tokens, because SLIPWAY_REQUIRE_TOKENS is not 1: capture the requests of everybody"
        )
    tokens = ApiToken.objects.select_related("user") if accounts else ()
    known = {name for one in tokens for name in (one.user.get_username(), account_name(one))}
    if unknown := [one for one in accounts if one not in known]:
        raise Invalid.at(
            "accounts",
            f"there is no token or person '{unknown[0][:150]}': write a person, or 'person: token' for one token",
        )


def _within(field: str, value: float, most: float, words: str) -> None:
    if not 0 < value <= most:
        raise Invalid.at(field, f"expected {words}")
