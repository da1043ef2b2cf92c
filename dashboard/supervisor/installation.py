"""Refuses a machine whose keys or shared folder are not those of the installation.

The database keeps an identity, which also lies as a file in the shared folder, and a hash of each key. The first process that
starts writes them, and each later one compares. An installation with SQLite and without SLIPWAY_SHARED is not checked, because
its database, keys and files lie in one folder.
"""

import hashlib
import secrets
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

from django.conf import settings
from django.db import Error, connection, transaction
from django.db.models.functions import Now
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM
from dashboard.access.control import refuse_half_restored
from dashboard.models import Heartbeat, Installation, Server, ServerState
from dashboard.servers.server_state import MACHINE, UP
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import ServerStatus
from dashboard.shared.exceptions import Invalid
from dashboard.shared.heartbeat import SILENT_AFTER_S
from dashboard.shared.machine import machine_identity
from dashboard.shared.startup import sentence
from repository.files.storage import write_atomic

# Environment variable -> Django setting of a key.
KEYS = {
    "SLIPWAY_SECRET_KEY": "SECRET_KEY",
    "SLIPWAY_CONTROL_KEY": "SERVER_CONTROL_KEY",
    "SLIPWAY_INFER_KEY": "SERVER_INFER_KEY",
}
# Keys that people chose may be short, so a guess takes some milliseconds.
_ROUNDS = 20_000
SERVER_GONE = timedelta(seconds=30)


def in_one_folder() -> bool:
    """Return whether the database, the keys and all files lie in the data folder."""
    return connection.vendor == "sqlite" and settings.SHARED_DIR == settings.DATA_DIR


def check_installation() -> None:
    """Raise Invalid if a key or the shared folder is not that of the installation, or if a restore has not ended. The first
    call writes key and folder down.

    Raises django.db.Error if the database does not answer or has no tables yet, OSError if the shared folder is unusable.
    """
    refuse_half_restored()
    if in_one_folder():
        return
    new = {"identity": secrets.token_hex(16)}
    Installation.objects.get_or_create(pk=1, defaults=new)
    with transaction.atomic():
        row = Installation.objects.select_for_update().get(pk=1)
        if not row.marked:  # nothing was compared before, or that process was killed
            _mark(row)
        _check_folder(row)
        _check_keys(row)


def installation_or_exit() -> None:
    """End the process with a sentence if its keys or its shared folder are wrong. A database that does not answer is accepted,
    because it may still start: `manage.py up` has checked before."""
    try:
        check_installation()
    except Invalid as error:
        sys.exit(sentence(error.message))
    except OSError as error:
        sys.exit(sentence(f"the shared folder (SLIPWAY_SHARED) cannot be used: {error.strerror}"))
    except Error:
        pass
    finally:
        connection.close()


def keys_accept() -> None:
    """Make this machine's keys those of the installation. Machines with the earlier keys are refused when they start next."""
    with transaction.atomic():
        row = _locked()
        row.keys = {name: _hash(name, row) for name in KEYS}
        row.save(update_fields=["keys"])
        audit_record(actor=SYSTEM, action="installation.keys", summary="Accepted new keys of the installation")


def folder_accept() -> None:
    """Make this machine's shared folder that of the installation.

    Raises Invalid if the keys are not those of the installation, OSError if the folder cannot be written.
    """
    with transaction.atomic():
        row = _locked()
        if row.keys:
            _check_keys(row)
        # A new identity, so that a machine which still has the earlier folder is refused.
        row.identity, row.marked = secrets.token_hex(16), True
        row.keys = {name: _hash(name, row) for name in KEYS}
        row.save()
        write_atomic(_file(), row.identity.encode(), mode=0o600)
        audit_record(actor=SYSTEM, action="installation.folder", summary="Accepted a shared folder of the installation")


def own_server_name() -> str:
    """Return the name of the bundled server of this machine: the one that it had, else LOCAL, or with a number for a machine
    that joins. A machine takes the name LOCAL over if nobody has seen its server for SERVER_GONE."""
    if in_one_folder():
        return LOCAL
    rows = {row.server.name: row for row in ServerState.objects.select_related("server").filter(server__bundled=True)}
    own = next((name for name, row in rows.items() if row.info.get(MACHINE) == machine_identity()), None)
    if own is not None:
        return own
    if LOCAL not in rows or not _runs_elsewhere(rows[LOCAL]):
        return LOCAL
    taken = set(Server.objects.values_list("name", flat=True))
    return next(name for number in count(2) if (name := f"{LOCAL}-{number}") not in taken)


def _runs_elsewhere(row: ServerState) -> bool:
    """Return whether another machine runs a bundled server, or has until a moment ago."""
    runs = row.state in (ServerStatus.STARTING, ServerStatus.RUNNING, ServerStatus.READY)
    seen = row.checked_at is not None and timezone.now() - row.checked_at < SERVER_GONE
    return row.info.get(MACHINE) is not None and ((runs and seen) or _is_heard(row.info.get(UP)))


def _is_heard(up: object) -> bool:
    """Return whether an `up` gives heartbeats, as it also does while no watcher looks at its server."""
    if not isinstance(up, list):
        return False
    host, process, since = up
    told = Heartbeat.objects.filter(name="up", host=host, process=process, since=since)
    return told.filter(beat_at__gt=Now() - timedelta(seconds=SILENT_AFTER_S)).exists()


def _locked() -> Installation:
    row, _ = Installation.objects.select_for_update().get_or_create(pk=1, defaults={"identity": secrets.token_hex(16)})
    return row


def _mark(row: Installation) -> None:
    """Write the identity into the shared folder, unless another installation has marked it."""
    if not _found():
        write_atomic(_file(), row.identity.encode(), mode=0o600)
    elif _found() != row.identity:
        raise Invalid(
            "the shared folder belongs to another database: set DATABASE_URL to that database, or SLIPWAY_SHARED to an empty "
            "folder; if this database takes the place of that one, run manage.py accept folder"
        )
    row.marked = True
    row.save(update_fields=["marked"])


def _check_folder(row: Installation) -> None:
    if _found() != row.identity:
        raise Invalid(
            "this machine's folder of models is not the one of the other machines: set SLIPWAY_SHARED to the folder "
            "that they share; if the folder was moved or restored on purpose, run manage.py accept folder"
        )


def _check_keys(row: Installation) -> None:
    mine = {name: _hash(name, row) for name in KEYS}
    if not row.keys:
        row.keys = mine
        row.save(update_fields=["keys"])
    wrong = [name for name in KEYS if row.keys.get(name) != mine[name]]
    if wrong:
        raise Invalid(
            f"this machine's keys are not those of the other machines: set {' and '.join(wrong)} to the same values on each "
            "machine; if the keys were changed on purpose, run manage.py accept keys"
        )


def _hash(name: str, row: Installation) -> str:
    key = getattr(settings, KEYS[name])
    return hashlib.pbkdf2_hmac("sha256", key.encode(), f"{name} {row.identity}".encode(), _ROUNDS).hex()


def _file() -> Path:
    return Path(settings.SHARED_DIR) / "installation"


def _found() -> str:
    try:
        return _file().read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""
