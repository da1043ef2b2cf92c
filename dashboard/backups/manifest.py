"""The manifest of a backup: a JSON object that names everything the backup holds."""

import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from dashboard.backups.store import Store
from dashboard.shared.exceptions import Invalid

FORMAT = 1
# The parts of the shared folder that a backup holds. What else lies there is made again.
FOLDERS = ("models", "archive", "batches", "captures", "usage")
# Their files do not change in place: a version is published, archived and restored by a rename.
SETTLED = ("models", "archive")
_MOST_BYTES = 1 << 30
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a table. columns: names of fields. blocks: SHA-256 of each block of rows, in the order of their keys."""

    columns: list[str]
    rows: int
    blocks: list[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file. path: within the shared folder. changed: when it changed last, in nanoseconds. mode: its permissions."""

    path: str
    size: int
    changed: int
    mode: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. name: its time in UTC. identity: that of the installation. migrations: app -> newest migrations.

    unsettled: models whose files changed while they were read, so that they may not match the database.
    settings: environment variables that were set, without secrets. sealed: the keys, encrypted; {} without a passphrase.
    """

    name: str
    identity: str
    migrations: dict[str, list[str]]
    tables: dict[str, Table]
    files: list[Entry]
    folders: list[str]
    unsettled: list[str]
    settings: dict[str, str]
    sealed: dict[str, str]

    def objects(self) -> Iterator[str]:
        for table in self.tables.values():
            yield from table.blocks
        for file in self.files:
            yield file.sha256

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)


def names(store: Store) -> list[str]:
    """Return the backups, the newest last."""
    return sorted(
        name.removesuffix(".json") for name in store.sizes("backups") if re.fullmatch(r"\d{8}T\d{6}Z\.json", name)
    )


def write(store: Store, manifest: Manifest) -> None:
    content = {"format": FORMAT, **asdict(manifest), "files": [list(asdict(file).values()) for file in manifest.files]}
    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:
        json.dump(content, file)
        file.flush()
        store.put(f"backups/{manifest.name}.json", Path(file.name))


def read(store: Store, name: str) -> Manifest:
    """Raises Invalid if the backup is damaged, or of a release with another format."""
    try:
        with store.read(f"backups/{name}.json") as file:
            content = json.loads(file.read(_MOST_BYTES))
        found = content.pop("format")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise Invalid(f"the backup {name} is damaged: choose another one") from None
    if found != FORMAT:
        raise Invalid(f"the backup {name} was made by another release of Slipway: restore it with that release")
    try:
        content["tables"] = {label: Table(**table) for label, table in content["tables"].items()}
        content["files"] = [Entry(*file) for file in content["files"]]
        manifest = Manifest(**content)
        whole = all(map(_SHA256.fullmatch, manifest.objects())) and all(
            map(_is_inside, (*manifest.folders, *(file.path for file in manifest.files)))
        )
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise Invalid(f"the backup {name} is damaged: choose another one")
    return manifest


def _is_inside(path: str) -> bool:
    """Return whether a path lies in one of FOLDERS: somebody else may have written the manifest."""
    parts = PurePosixPath(path).parts
    return parts[0] in FOLDERS and ".." not in parts and "\0" not in path
