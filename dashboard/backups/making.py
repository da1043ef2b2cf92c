"""Makes a backup while the product runs, and removes old ones.

Files come first, because they take long. Then the database is read from one snapshot, between two listings of the files: if
both are equal, files and rows are of the same moment, up to what a crash at that moment would leave. If not, both are read
again.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM
from dashboard.access.control import BACKUP_NAME
from dashboard.backups import manifest as manifests
from dashboard.backups import tables
from dashboard.backups.files import Copier, Listing, Progress, listed
from dashboard.backups.manifest import FOLDERS, SETTLED, Entry, Manifest, Table
from dashboard.backups.sealed import seal
from dashboard.backups.store import Store, store_at
from dashboard.models import Installation, Model
from dashboard.releases.storage import adopted_fingerprint
from dashboard.shared.environment import PASSPHRASE, SECRETS, VARIABLES
from dashboard.shared.exceptions import Conflict
from dashboard.supervisor.installation import KEYS
from repository.files.storage import locked

_ATTEMPTS = 5
# The places of one machine, or of the original's data: a restored installation that used them would not be its own.
PLACES = frozenset({"SLIPWAY_DATA", "SLIPWAY_SHARED", "DATABASE_URL", "REDIS_URL"})
_NOT_TEXT = SECRETS | PLACES

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Made:
    """A finished backup. stored: the bytes that were new. read: the bytes of files that were read."""

    manifest: Manifest
    rows: int
    stored: int
    read: int


def backup_make(*, address: str, without: Collection[str], passphrase: str, say: Say) -> Made:
    """Make a backup. without: the parts of FOLDERS to leave out. passphrase: encrypts the keys; "" leaves them out.

    Raises Conflict if the address holds backups of another installation.
    """
    store = store_at(address)
    with _alone(), _spool() as spool:
        identity = _identity()
        last = _last(store, identity)
        known = set(store.sizes("objects"))
        copier = Copier(store, known, last.files if last else [], spool)
        parts = [part for part in FOLDERS if part not in without]
        files, _ = listed(parts)
        copier.copy(files, _progress(files, say))
        rows = _Rows(spool / "rows", known)
        for attempt in range(_ATTEMPTS):
            files, folders = listed(parts)
            say("Reading the database." if attempt == 0 else "Models have changed: reading the database again.")
            found, hashes = rows.read()
            entries = copier.copy(files, _progress(files, say))
            unsettled = sorted(_changed(files, listed(parts)[0]))
            if not unsettled:
                break
        if settings.REPOSITORY_BUCKET:
            _refuse_other_copy(entries, hashes, unsettled)
        stored = copier.stored_bytes + rows.store(store, found)
        made = Manifest(
            name=timezone.now().strftime(BACKUP_NAME),
            identity=identity,
            migrations=_migrations(),
            tables=found,
            files=entries,
            folders=folders,
            unsettled=unsettled,
            settings={name: os.environ[name] for name in VARIABLES if os.environ.get(name) and name not in _NOT_TEXT},
            sealed=seal(passphrase, _secrets()) if passphrase else {},
        )
        manifests.write(store, made)
    audit_record(actor=SYSTEM, action="installation.backup", summary=f"Made the backup {made.name}")
    return Made(made, sum(table.rows for table in found.values()), stored, copier.read_bytes)


def backups_prune(*, address: str, keep: int | None) -> tuple[int, int, int]:
    """Remove all backups but the newest `keep`, if given, and everything that no backup names.

    Return the numbers of backups and objects that were removed, and the bytes of the objects.
    """
    store = store_at(address)
    with _alone():
        _last(store, _identity())
        found = manifests.names(store)
        gone = found[:-keep] if keep else []
        # Manifests go first: a backup is whole or not listed.
        needed = {sha256 for name in found[len(gone) :] for sha256 in manifests.read(store, name).objects()}
        for name in gone:
            store.delete(f"backups/{name}.json")
        removed = {name: size for name, size in store.sizes("objects").items() if name not in needed}
        for name in removed:
            store.delete(f"objects/{name}")
    return len(gone), len(removed), sum(removed.values())


class _Rows:
    """The blocks of one snapshot, in a folder until the snapshot has ended: a slow store does not hold it open."""

    def __init__(self, folder: Path, known: set[str]) -> None:
        self._folder = folder
        self._known = known

    def read(self) -> tuple[dict[str, Table], dict[str, str]]:
        """Return the tables, and path -> SHA-256 of each model's files as the rows have them, and so the bucket's pointers."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        with tables.snapshot():
            found = {label: tables.dump(model, self._keep) for label, model in tables.kept().items()}
            hashes = {
                f"models/{model.name}/{name}": str(file[2])
                for model in Model.objects.only("name", "fingerprint")
                for name, file in adopted_fingerprint(model)["files"].items()
            }
        return found, hashes

    def _keep(self, block: bytes) -> str:
        sha256 = hashlib.sha256(block).hexdigest()
        if sha256 not in self._known:
            (self._folder / sha256).write_bytes(block)
        return sha256

    def store(self, store: Store, found: dict[str, Table]) -> int:
        """Store the new blocks, and return their bytes."""
        new = sorted({block for table in found.values() for block in table.blocks} - self._known)
        for block in new:
            store.put(f"objects/{block}", self._folder / block)
        return sum((self._folder / block).stat().st_size for block in new)


def _refuse_other_copy(entries: list[Entry], hashes: dict[str, str], unsettled: list[str]) -> None:
    """Raise Conflict if the folder, which is only a working copy, has not the content that the bucket has."""
    there = {entry.path: entry.sha256 for entry in entries}
    for path, sha256 in hashes.items():
        model = path.split("/")[1]
        if there.get(path) != sha256 and model not in unsettled:
            raise Conflict(
                f"{path} in the shared folder is not what the bucket of SLIPWAY_REPOSITORY has: adopt the change of {model}, "
                "or put the file back (if the folder of the model is removed, up brings it back from the bucket)"
            )


def _alone() -> AbstractContextManager[None]:
    return locked(settings.SHARED_DIR / "backup.lock", "this installation's set of backups", wait_s=1.0)


@contextmanager
def _spool() -> Iterator[Path]:
    """Yield an empty folder. A killed backup leaves it to the next one."""
    folder = settings.DATA_DIR / "backup"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _identity() -> str:
    row, _ = Installation.objects.get_or_create(pk=1, defaults={"identity": os.urandom(16).hex()})
    return row.identity


def _last(store: Store, identity: str) -> Manifest | None:
    """Return the newest backup, which must be of this installation."""
    found = manifests.names(store)
    last = manifests.read(store, found[-1]) if found else None
    if last is not None and last.identity != identity:
        raise Conflict("this address holds backups of another installation: choose another one for this installation")
    return last


def _changed(before: Listing, after: Listing) -> set[str]:
    """Return the models whose files differ."""
    paths = {path for path, _ in before.items() ^ after.items()}
    return {path.split("/")[1] for path in paths if path.partition("/")[0] in SETTLED}


def _progress(files: Listing, say: Say) -> Progress:
    return Progress("Files", sum(size for size, _, _ in files.values()), say)


def _migrations() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for app, name in sorted(MigrationRecorder(connection).applied_migrations()):
        found.setdefault(app, []).append(name)
    return found


def _secrets() -> dict[str, str]:
    keys = {variable: str(getattr(settings, name)) for variable, name in KEYS.items()}
    return {name: os.environ[name] for name in SECRETS - {PASSPHRASE} if os.environ.get(name)} | keys
