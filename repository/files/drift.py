"""Finds changes that were made in a model's folder by hand.

A fingerprint is plain JSON data. A second fingerprint is cheap: a file with the same size and time as before is not read again.
"""

import re
from pathlib import Path
from typing import TypedDict

from repository.core.layout import CONFIG_FILE, OVERLAY_FILE, parse_version
from repository.files.storage import Manifest, hash_file, plain_files

File = list[int | str]  # size, mtime in ns, SHA-256


class Fingerprint(TypedDict):
    """`config`: the SHA-256 of config.pbtxt; "" if there is no such file. `files`: all other files, by name."""

    config: str
    files: dict[str, File]


# Files that Python writes when a model.py is imported, and temporary files.
_IGNORED = re.compile(r"(^|/)(__pycache__(/|$)|\.[^/]*\.tmp$)|\.pyc$")


def fingerprint(model_dir: Path, previous: Fingerprint | None = None) -> Fingerprint:
    """Return the fingerprint of a model's folder. previous: it gives the hashes of files with the same size and time."""
    known = previous["files"] if previous else {}
    files: dict[str, File] = {}
    for path in sorted(model_dir.rglob("*")):
        name = path.relative_to(model_dir).as_posix()
        if _IGNORED.search(name):
            continue
        try:
            if path.is_file():
                files[name] = _entry(path, known.get(name))
        except OSError:  # the file was removed, or cannot be read: the server reports it when it loads the model
            continue
    config = files.pop(CONFIG_FILE, None)
    return {"config": str(config[2]) if config else "", "files": files}


def manifest(version_dir: Path) -> Manifest:
    """Return the manifest of a version's files, without those that Python has written since it was published.

    Raises UnsafePath if one is a link or a device.
    """
    names = [name for name in plain_files(version_dir) if not _IGNORED.search(name)]
    return Manifest({name: hash_file(version_dir / name) for name in names})


def compare(recorded: Fingerprint, current: Fingerprint) -> list[str]:
    """Return the changes, one sentence each. A different time alone is no change."""
    sentences = _config_change(recorded["config"], current["config"])
    before, after = recorded["files"], current["files"]
    whole = _whole_versions(before, after)
    for version, sentence in sorted(whole.items()):
        sentences.append(sentence.format(version))
    for name in sorted(before.keys() | after.keys()):
        if _version_of(name) not in whole:
            sentences.extend(_file_change(name, before.get(name), after.get(name)))
    return sentences


def _entry(path: Path, known: File | None) -> File:
    status = path.stat()
    if known is not None and known[:2] == [status.st_size, status.st_mtime_ns]:
        return list(known)
    return [status.st_size, status.st_mtime_ns, hash_file(path).sha256]


def _config_change(before: str, after: str) -> list[str]:
    if before == after:
        return []
    if not before:
        return [f"{CONFIG_FILE} was added."]
    return [f"{CONFIG_FILE} was edited." if after else f"{CONFIG_FILE} was removed."]


def _whole_versions(before: dict[str, File], after: dict[str, File]) -> dict[int, str]:
    """Return the versions that were added or removed as a whole, each with a sentence about it."""
    old = {_version_of(name) for name in before} - {None}
    new = {_version_of(name) for name in after} - {None}
    came = {version: "Version {} was added." for version in new - old if version is not None}
    went = {version: "Version {} was removed." for version in old - new if version is not None}
    return came | went


def _version_of(name: str) -> int | None:
    return parse_version(name.partition("/")[0]) if "/" in name else None


def _file_change(name: str, before: File | None, after: File | None) -> list[str]:
    version = _version_of(name)
    short = name.partition("/")[2] if version is not None else name
    where = f" of version {version}" if version is not None else ""
    what = f"The overlay {OVERLAY_FILE}" if short == OVERLAY_FILE else f"File {short}"
    if before is None:
        return [f"{what}{where} was added."]
    if after is None:
        return [f"{what}{where} was removed."]
    return [] if before[2] == after[2] else [f"{what}{where} was changed."]
