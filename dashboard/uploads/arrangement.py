"""Arranges the files of an upload as a version folder: unpacks archives, strips wrapping folders, renames the model file.

An upload may be one model file, the files of a version, or a model's folder with config.pbtxt and one version folder. It may
also be a zip of any of these, or the config.pbtxt of an ensemble. A backend's archive stays packed.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from django.conf import settings

from dashboard.catalog.archives import readers
from dashboard.models import Upload
from dashboard.shared.exceptions import Invalid
from repository.config import model_config
from repository.config.backends import FILENAME_OF_PACKED, FILENAME_OF_SUFFIX, FORMATS
from repository.config.document import Document
from repository.core.layout import CONFIG_FILE, parse_version
from repository.files import archive, foreign_formats, storage

MAX_MODEL_FILE_BYTES = 16 << 20  # the largest file next to the version folders, such as labels or a vocabulary
_MANIFESTS = {one.holds for one in FORMATS.values() if one.holds}  # manifests that mark an unpacked archive
_LITTER = ("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__")


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arranged files. model_files: the files for the model's folder. config: the config.pbtxt, or None."""

    version_dir: Path
    files: list[str]
    config: Document | None = None
    model_files: dict[str, Path] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  # the client's name -> ours


def arrange(upload: Upload) -> Arrangement:
    """Arrange the files under the upload's folder. It can run again, because it begins from the received bytes."""
    source, version_dir = upload.folder / "source", upload.folder / "version"
    storage.remove_tree(source)
    storage.remove_tree(version_dir)
    _unpack(upload, source)
    root = _unwrapped(source)
    config = _config(root)
    found = _version_folder(root)
    files = {name: (found or root) / name for name in storage.plain_files(found or root) if not _litter(name)}
    beside = {}
    if found is not None:
        beside = {
            name: root / name for name in storage.plain_files(root) if not _inside(name, found) and not _litter(name)
        }
    else:
        beside = {name: files[name] for name in _labels(config) if name in files}
    files = {
        name: path for name, path in files.items() if name not in beside and not (found is None and name == CONFIG_FILE)
    }
    beside.pop(CONFIG_FILE, None)
    _refuse_large(beside)
    renamed = _renamed(list(files), config)
    _refuse_other_tar(files, renamed)
    _place(files, renamed, version_dir)
    return Arrangement(version_dir, storage.plain_files(version_dir), config, beside, renamed)


def source_folder(upload: Upload) -> Path:
    """Return the folder of the files as the client named them, without folders that wrap it. `arrange` makes it."""
    return _unwrapped(upload.folder / "source")


def _unpack(upload: Upload, source: Path) -> None:
    """Unpack a single zip, or link the files under the client's names, which were checked when the upload began."""
    files = list(upload.files.all())
    if len(files) == 1 and files[0].path.lower().endswith(".zip"):
        archive.extract(
            upload.folder / "files" / str(files[0].number), source, archive.Limits(reserve=settings.DISK_RESERVE_BYTES)
        )
        return
    source.mkdir()
    for file in files:
        target = source / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        received = upload.folder / "files" / str(file.number)
        received.touch()  # an empty file has no chunk
        os.link(received, target)


def _unwrapped(folder: Path) -> Path:
    """Return the innermost folder that holds everything and is no version, because people zip and drop whole folders."""
    while True:
        entries = [entry for entry in folder.iterdir() if entry.name not in _LITTER]
        only = entries[0] if len(entries) == 1 else None
        if only is None or not only.is_dir() or parse_version(only.name) is not None:
            return folder
        folder = only


def _version_folder(root: Path) -> Path | None:
    """Return the only version folder, or None if there is none. The folders of an unpacked archive are not versions."""
    if any((root / name).is_file() for name in _MANIFESTS):
        return None
    versions = [entry for entry in root.iterdir() if entry.is_dir() and parse_version(entry.name) is not None]
    if len(versions) > 1:
        names = ", ".join(sorted(entry.name for entry in versions))
        raise Invalid(f"the upload holds the versions {names}; upload one version at a time")
    return versions[0] if versions else None


def _config(root: Path) -> Document | None:
    return Document.read(model_config.read_text(root) or "") if (root / CONFIG_FILE).is_file() else None


def _labels(config: Document | None) -> list[str]:
    """Return the label files that a configuration names; they belong in the model's folder."""
    if config is None or config.mistake:
        return []
    return [output.label_filename for output in config.message.output if output.label_filename]


def _renamed(names: list[str], config: Document | None) -> dict[str, str]:
    """Rename the one model file of the folder to the name that the server looks for, unless the configuration names it.

    The files of an unpacked archive keep their names, which its manifest has.
    """
    if not _MANIFESTS.isdisjoint(names):
        return {}
    given = "" if config is None or config.mistake else config.message.default_model_filename
    known = {name: _our_name(name) for name in names if "/" not in name}
    candidates = {name: ours for name, ours in known.items() if ours}
    if given in names or set(candidates.values()) & set(names) or len(candidates) != 1:
        return {}
    return candidates


def _our_name(name: str) -> str:
    """Return the name under which the server looks for a file; "" if the file is no model by its name."""
    packed = next((ours for end, ours in FILENAME_OF_PACKED.items() if name.lower().endswith(end)), "")
    return packed or FILENAME_OF_SUFFIX.get(PurePosixPath(name).suffix.lower(), "")


def _refuse_other_tar(files: dict[str, Path], renamed: dict[str, str]) -> None:
    """Refuse a tar file that is no backend's archive, because only backends' archives stay packed."""
    for name in renamed:
        if name.lower().endswith(tuple(FILENAME_OF_PACKED)) and any(one.is_foreign(files[name]) for one in readers()):
            raise Invalid(f"'{name}' cannot be served, because {foreign_formats.ARCHIVE.sentence}")


def _place(files: dict[str, Path], renamed: dict[str, str], version_dir: Path) -> None:
    version_dir.mkdir()
    for name, path in files.items():
        target = version_dir / renamed.get(name, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)


def _refuse_large(files: dict[str, Path]) -> None:
    for name, path in files.items():
        if path.stat().st_size > MAX_MODEL_FILE_BYTES:
            raise Invalid(f"'{name}' next to the version folder is larger than {MAX_MODEL_FILE_BYTES >> 20} MiB")


def _inside(name: str, folder: Path) -> bool:
    return name.partition("/")[0] == folder.name


def _litter(name: str) -> bool:
    return any(part in _LITTER or part.startswith("._") for part in PurePosixPath(name).parts)
