"""The layout of a model repository; the one place where a name becomes a path.

<root>/<model>/config.pbtxt
<root>/<model>/<version>/...            the version's files, and optionally slipway.pbtxt
<root>/../staging                       files that are being received or unpacked, outside the root
<root>/../archive/<model>/<version>     archived versions: out of service, but kept
"""

import os
import re
import unicodedata
from pathlib import Path

from repository.core.addresses import leads_into
from repository.core.errors import Conflict, InvalidName, NotFound, UnsafePath

CONFIG_FILE = "config.pbtxt"
CONFIGS_FOLDER = "configs"  # the folder of custom configurations; --model-config-name chooses one of them
OVERLAY_FILE = "slipway.pbtxt"
_NO_VERSIONS = frozenset((CONFIGS_FOLDER, "warmup", "initial_state"))

MAX_NAME_BYTES = 200  # the name of a folder has at most 255 bytes, and a folder that is moved away gets a longer name
MAX_VERSION = (1 << 63) - 1  # Triton keeps versions in an int64

# Unicode categories: controls, invisible formatting, surrogates (which UTF-8 cannot encode), line ends.
_UNPRINTABLE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
EVERY_MODEL = "*"  # stands for all models in tokens and in --load-model
_VERSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


def check_name(name: str) -> str:
    """Return the name itself. Raises InvalidName if it may not become the name of a folder.

    As in Triton, any name of a folder is allowed, except names of hidden folders, EVERY_MODEL, and names that a log cannot show
    unchanged.
    """
    if not isinstance(name, str) or not name:
        raise InvalidName("a model name has at least one character")
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        raise InvalidName("a model name has no control characters, and is valid UTF-8")
    if name.startswith(".") or "/" in name:
        raise InvalidName("a model name does not begin with '.' and has no '/'")
    if name == EVERY_MODEL:
        raise InvalidName(f"'{EVERY_MODEL}' means every model, so that none can have this name")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise InvalidName(
            f"a model name has at most {MAX_NAME_BYTES} bytes in UTF-8, this one has {len(name.encode())}"
        )
    return name


def check_version(version: int) -> int:
    """Return the number itself. Raises InvalidName if it may not become the name of a version's folder."""
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= MAX_VERSION:
        raise InvalidName("a version is a whole number from 1 up")
    return version


def parse_version(text: str) -> int | None:
    """Return the version that a folder's name means, by Triton's rule, or None for a folder that is no version.

    Triton ignores folders whose names are not numbers or begin with a zero (docs/user_guide/model_repository.md).
    """
    if not _VERSION.fullmatch(text):
        return None
    version = int(text)
    return version if version <= MAX_VERSION else None


def relative_path(text: str) -> Path:
    """Return a client's name of a file in a version as a relative path. Raises UnsafePath if it could leave the folder."""
    path = Path(text)
    bad_part = any(part in ("", ".", "..") or len(part.encode()) > 255 for part in text.split("/"))
    if not text or "\\" in text or "\0" in text or path.is_absolute() or bad_part or len(text) > 1024:
        raise UnsafePath(f"'{text[:80]}' is not a plain relative file name")
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise UnsafePath("a file name holds a control character")
    return path


class ModelRepository:
    """The paths of one repository. Only `create` writes to the disk."""

    def __init__(
        self, root: Path, *, staging: Path | None = None, archive: Path | None = None, reserve: int | None = None
    ) -> None:
        """reserve: the bytes to leave free on the disks, see storage.ensure_space."""
        self.root = Path(root)
        self.staging = staging or self.root.parent / "staging"
        self.archive = archive or self.root.parent / "archive"
        self.reserve = reserve

    def models(self) -> list[str]:
        """Return the names of the folders that can be models, sorted."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return sorted(entry.name for entry in entries if self._is_model(entry))

    def invalid_folders(self) -> list[str]:
        """Return a sentence for each folder that cannot be a model, except hidden folders."""
        if not self.root.is_dir():
            return []
        with os.scandir(self.root) as entries:
            return sorted(filter(None, map(self._objection, entries)))

    def versions(self, name: str) -> list[int]:
        """Return the versions on disk, ascending."""
        return version_folders(self.model_dir(name))

    def has_model(self, name: str) -> bool:
        return self.model_dir(name).is_dir()

    def has_version(self, name: str, version: int) -> bool:
        return self.version_dir(name, version).is_dir()

    def model_dir(self, name: str) -> Path:
        """Return <root>/<name>, even if it does not exist. Raises UnsafePath if a symbolic link leads out of the root."""
        return self._inside(self.root / check_name(name))

    def version_dir(self, name: str, version: int) -> Path:
        return self._inside(self.model_dir(name) / str(check_version(version)))

    def config_path(self, name: str) -> Path:
        return self._inside(self.model_dir(name) / CONFIG_FILE)

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of all versions on disk, including archived versions."""
        return [*self.versions(name), *self.archived_versions(name)]

    def archived_versions(self, name: str) -> list[int]:
        return version_folders(self.archive / check_name(name))

    def archived_version_dir(self, name: str, version: int) -> Path:
        return self.archive / check_name(name) / str(check_version(version))

    def existing_model_dir(self, name: str) -> Path:
        path = self.model_dir(name)
        if not path.is_dir():
            raise NotFound(f"the repository has no folder of model '{name}' any more: put it back first")
        return path

    def existing_version_dir(self, name: str, version: int) -> Path:
        path = self.version_dir(name, version)
        if not path.is_dir():
            raise NotFound(f"model '{name}' has no version {version}")
        return path

    def create(self, name: str) -> Path:
        """Create an empty model folder. Raises Conflict if the folder exists."""
        path = self.model_dir(name)
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            path.mkdir()
        except FileExistsError:
            raise Conflict(f"a model '{name}' exists already") from None
        return path

    def _is_model(self, entry: "os.DirEntry[str]") -> bool:
        return not entry.name.startswith(".") and _is_folder(entry) and not self._objection(entry)

    def _objection(self, entry: "os.DirEntry[str]") -> str:
        """Return why a folder is no model; "" for a model, for a hidden folder and for a file."""
        if entry.name.startswith(".") or not _is_folder(entry):
            return ""
        try:
            check_name(entry.name)
            if entry.is_symlink():
                self.model_dir(entry.name)
        except (InvalidName, UnsafePath) as error:
            return f"folder {entry.name[:80]!a} is passed over: {error.message}"
        return ""

    def _inside(self, path: Path) -> Path:
        """Return the path itself. Raises UnsafePath if a link in the path, below the root, leads out of the root."""
        below = path
        while below != self.root:
            if below.is_symlink() and not leads_into(below, self.root):
                raise UnsafePath(f"'{below.name}' is a link that leads out of the repository")
            below = below.parent
        return path


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def ignored_folders(model_dir: Path) -> list[str]:
    """Return a sentence, in Triton's words, for each folder of a model that looks like a version but is no version."""
    with os.scandir(model_dir) as entries:
        names = sorted(entry.name for entry in entries if _is_folder(entry) and parse_version(entry.name) is None)
    return [
        f"ignore version directory '{name}' which contains leading zeros in its directory name"
        if name.isdigit()
        else f"ignore version directory '{name}' which fails to convert to integral number"
        for name in names
        if name.isprintable() and not name.startswith((".", "__")) and name not in _NO_VERSIONS
    ]


def version_folders(model_dir: Path) -> list[int]:
    """Return the version numbers of the folders in a model's folder, ascending."""
    try:
        with os.scandir(model_dir) as entries:
            found = [parse_version(entry.name) for entry in entries if _is_folder(entry)]
    except OSError:  # there is no folder, or it may not be read
        return []
    return sorted(version for version in found if version is not None)
