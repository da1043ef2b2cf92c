"""Restores a backup into an empty installation, or verifies it.

Files come first and the database last, in one transaction. A restore that was broken off goes on where it was, and until it has
ended no process of the product starts (`restoring` in the shared folder).
"""

import hashlib
import json
import os
import secrets
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import StateApps
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM
from dashboard.backups import manifest as manifests
from dashboard.backups import tables
from dashboard.backups.files import Progress, chunks
from dashboard.backups.making import Say
from dashboard.backups.manifest import SETTLED, Entry, Manifest
from dashboard.backups.sealed import unseal
from dashboard.backups.store import Store, store_at
from dashboard.servers.server_state import MACHINE
from dashboard.shared.choices import ServerStatus, UploadState
from dashboard.shared.exceptions import Conflict, Invalid, NotFound
from dashboard.supervisor.installation import KEYS
from repository.files.storage import ensure_space, full_disk_is_no_space, hash_stream, write_atomic

_FILES_OF_KEYS = {
    "SLIPWAY_SECRET_KEY": "secret_key",
    "SLIPWAY_CONTROL_KEY": "control_key",
    "SLIPWAY_INFER_KEY": "infer_key",
}


def backups_list(address: str) -> list[Manifest]:
    store = store_at(address)
    return [manifests.read(store, name) for name in manifests.names(store)]


def backup_find(address: str, name: str) -> tuple[Store, Manifest]:
    """Return a backup, the newest one for "". Raises NotFound if there is none."""
    store = store_at(address)
    found = manifests.names(store)
    if not found:
        raise NotFound("this address holds no backup")
    if name and name not in found:
        raise NotFound(f"there is no backup {name}: --list names them")
    return store, manifests.read(store, name or found[-1])


def backup_verify(store: Store, manifest: Manifest, say: Say) -> list[str]:
    """Read everything that a backup names; return a sentence for each object that is missing or changed."""
    paths = {file.sha256: f"The file {file.path}" for file in manifest.files}
    blocks = {block: f"A block of {label}" for label, table in manifest.tables.items() for block in table.blocks}
    progress = Progress("Verified", manifest.bytes, say)
    wrong = []
    for sha256, what in (blocks | paths).items():
        try:
            with store.read(f"objects/{sha256}") as file:
                same = hash_stream(file, progress).sha256 == sha256
        except NotFound:
            wrong.append(f"{what} is missing in the backup ({sha256}).")
        else:
            if not same:
                wrong.append(f"{what} was changed in the backup ({sha256}).")
    return wrong


def backup_restore(*, store: Store, manifest: Manifest, passphrase: str, say: Say) -> list[str]:
    """Restore a backup, and return sentences on what a person should know.

    Raises Conflict if the installation is not empty. Raises Invalid if the passphrase is wrong, or the backup is damaged or of
    a newer release.
    """
    keys = unseal(passphrase, manifest.sealed) if passphrase and manifest.sealed else {}
    executor = MigrationExecutor(connection)
    targets = _targets(executor, manifest)
    mark = settings.SHARED_DIR / "restoring"
    _begin(mark, manifest)
    if _restored() != manifest.name:
        _files(store, manifest, say)
        say("Writing the database.")
        _database(executor, targets, store, manifest)
    call_command("migrate", interactive=False, verbosity=0)
    said = _keys(manifest, keys)
    (settings.SHARED_DIR / "installation").unlink(missing_ok=True)
    mark.unlink()
    return said


# -- before anything is changed ---------------------------------------------------------------------------------------
def _targets(executor: MigrationExecutor, manifest: Manifest) -> list[tuple[str, str]]:
    """Return the migrations after which the tables are as they were when the backup was made."""
    known = executor.loader.disk_migrations
    made = [(app, name) for app, found in manifest.migrations.items() for name in found]
    unknown = [f"{app} {name}" for app, name in made if (app, name) not in known]
    if unknown:
        raise Invalid(
            f"the backup was made by a newer release of Slipway (this one does not know '{unknown[-1]}'): restore it with that "
            "release"
        )
    later = set(executor.loader.applied_migrations) - set(made)
    if later:
        raise Conflict("the database here has the tables of a newer release than the backup: use one without tables")
    followed = {parent.key for key in made for parent in executor.loader.graph.node_map[key].parents}
    return sorted(set(made) - followed)


def _begin(mark: Path, manifest: Manifest) -> None:
    """Refuse an installation that is not empty, unless it is this backup's half-restored one."""
    try:
        begun = json.loads(mark.read_bytes())
    except FileNotFoundError:
        begun = None
    except ValueError:
        begun = {}
    if begun is None:
        _refuse_unless_empty()
        needed = manifest.bytes + sum(table.rows for table in manifest.tables.values()) * 500
        ensure_space(settings.SHARED_DIR, needed, settings.DISK_RESERVE_BYTES)
        write_atomic(mark, json.dumps({"backup": manifest.name, "identity": manifest.identity}).encode(), mode=0o600)
    elif begun != {"backup": manifest.name, "identity": manifest.identity}:
        raise Conflict(
            f"a restore was broken off here: run it again with --backup {begun.get('backup')}, or begin with an empty "
            "folder and database"
        )


def _refuse_unless_empty() -> None:
    for part in SETTLED:
        if any((settings.SHARED_DIR / part).iterdir()):
            raise Conflict(f"a backup is restored into an empty installation, and the folder {part} here has content")
    with connection.cursor() as cursor:
        found = set(connection.introspection.table_names(cursor))
        for table in {"auth_user", "dashboard_model", "dashboard_server"} & found:
            cursor.execute(f"SELECT 1 FROM {connection.ops.quote_name(table)} LIMIT 1")
            if cursor.fetchone():
                raise Conflict("a backup is restored into an empty installation, and the database here has content")


def _restored() -> str:
    """Return the backup whose rows the database has."""
    with connection.cursor() as cursor:
        if "dashboard_installation" not in connection.introspection.table_names(cursor):
            return ""
        columns = connection.introspection.get_table_description(cursor, "dashboard_installation")
        if "restored" not in {column.name for column in columns}:
            return ""
        cursor.execute("SELECT restored FROM dashboard_installation")
        row = cursor.fetchone()
    return str(row[0]) if row else ""


# -- files and keys ---------------------------------------------------------------------------------------------------
def _files(store: Store, manifest: Manifest, say: Say) -> None:
    for folder in manifest.folders:
        (settings.SHARED_DIR / folder).mkdir(parents=True, exist_ok=True)
    progress = Progress("Files", manifest.bytes, say)
    for file in manifest.files:
        path = settings.SHARED_DIR / file.path
        # A file has its time only after all its bytes were verified.
        if path.exists() and (path.stat().st_size, path.stat().st_mtime_ns) == (file.size, file.changed):
            progress.advance(file.size)
        else:
            _file(store, file, path, progress)


def _file(store: Store, file: Entry, path: Path, progress: Progress) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.restoring")
    found = hashlib.sha256()
    try:
        with (
            full_disk_is_no_space(file.size, path.parent),
            store.read(f"objects/{file.sha256}") as source,
            os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target,
        ):
            for chunk in chunks(source):
                target.write(chunk)
                found.update(chunk)
                progress.advance(len(chunk))
            target.flush()
            os.fsync(target.fileno())
        if found.hexdigest() != file.sha256:
            raise Invalid(f"the file {file.path} was changed in the backup: restore another backup")
        temporary.chmod(file.mode)
        os.utime(temporary, ns=(file.changed, file.changed))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _keys(manifest: Manifest, keys: dict[str, str]) -> list[str]:
    """Write the keys to the data folder, and the settings to a file beside them; return sentences on both."""
    said = []
    if not keys:
        why = "were restored without a passphrase" if manifest.sealed else "are not in this backup"
        said.append(
            f"The keys {why}, so new ones are made: people sign in again, and servers of other machines need the new keys."
        )
    for variable, name in _FILES_OF_KEYS.items():
        if variable in keys and not os.environ.get(variable):
            write_atomic(settings.DATA_DIR / name, keys[variable].encode(), mode=0o600)
        elif variable in keys and keys[variable] != getattr(settings, KEYS[variable]):
            said.append(f"{variable} is set here to another value than in the backup.")
    settled = {name: value for name, value in (manifest.settings | keys).items() if name not in KEYS}
    differ = {name: value for name, value in settled.items() if os.environ.get(name) != value}
    if differ:
        text = "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(differ.items()))
        write_atomic(settings.DATA_DIR / "restored.env", text.encode(), mode=0o600)
        said.append(
            f"The original had other settings, which restored.env in the data folder lists: {', '.join(sorted(differ))}."
        )
    return said


# -- the database -----------------------------------------------------------------------------------------------------
def _database(executor: MigrationExecutor, targets: list[tuple[str, str]], store: Store, manifest: Manifest) -> None:
    """Fill the tables as the release of the backup knew them."""
    if not set(targets) <= set(executor.loader.applied_migrations):
        executor.migrate(targets)
    registry = executor.loader.project_state(targets).apps
    known = tables.kept(registry)
    missing = manifest.tables.keys() - known.keys()
    if missing:
        raise Invalid(f"the backup has rows of {sorted(missing)[0]}, which its release does not know: it is damaged")

    def rows(label: str) -> Iterator[tuple[list[str], bytes]]:
        table = manifest.tables.get(label)
        for block in table.blocks if table else []:
            with store.read(f"objects/{block}") as file:
                content = file.read()
            if hashlib.sha256(content).hexdigest() != block:
                raise Invalid(f"the rows of {label} were changed in the backup: restore another backup")
            yield table.columns if table else [], content

    with transaction.atomic():
        tables.replace(known, rows)
        _begin_anew(registry, manifest)


def _begin_anew(registry: StateApps, manifest: Manifest) -> None:
    """Give the installation an identity of its own and no control, and let no row tell of the original's processes."""
    _rows(registry, "Installation").update_or_create(
        pk=1,
        defaults={"identity": secrets.token_hex(16), "marked": False, "keys": {}, "restored": manifest.name},
    )
    _rows(registry, "WatchLease").update(holder="", until=datetime.fromtimestamp(0, UTC))
    _rows(registry, "ServerState").update(
        state=ServerStatus.STOPPED,
        pid=None,
        instance="",
        restart_requested_at=None,
        last_reason="Restored from a backup.",
    )
    for state in _rows(registry, "ServerState").all():
        state.info.pop(MACHINE, None)
        state.save(update_fields=["info"])
    # Backups have no files of unfinished uploads.
    unfinished = _rows(registry, "Upload").exclude(state__in=(UploadState.PUBLISHING, UploadState.PUBLISHED))
    unfinished.update(expires_at=timezone.now())
    _rows(registry, "AuditEntry").create(
        actor_name=SYSTEM.name, action="installation.restore", summary=f"Restored the backup {manifest.name}"
    )


def _rows(registry: StateApps, name: str) -> Any:
    return registry.get_model("dashboard", name)._base_manager
