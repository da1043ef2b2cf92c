"""The files of a folder of text, or of an archive: read into their one form, and written."""

import io
import json
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from dashboard.shared.exceptions import Invalid
from dashboard.text.kinds import INSTALLATION, Kind
from dashboard.text.shapes import Place, checked
from dashboard.text.table import KINDS
from dashboard.text.yaml_text import read, written

MARK = "slipway.yaml"  # says that a folder is such a text, and in which form
FORM = 1
_UNFINISHED = "unfinished"
_MOST_BYTES = 32 << 20  # of one file; the examples of a model have 8 MiB at most
_OURS = (".yaml", ".yml", ".pbtxt")
_MODELS = "models"


class File(NamedTuple):
    """One file in its one form. value: as in `Kind`; place: with the lines of its parts, if it was read from a folder."""

    kind: Kind
    scope: str
    value: Any
    place: Place

    @property
    def path(self) -> str:
        return self.kind.path(self.scope)

    @property
    def text(self) -> str:
        return self.value if self.kind.shape is None else written(self.value)

    def entries(self) -> dict[Any, Any]:
        """Return its entries by name; those of a list by their text, because they have no name. A file that is one entry has
        that under ""."""
        if not self.kind.entries:
            return {"": self.value}
        if not self.kind.listed:
            return dict(self.value)
        found: dict[Any, Any] = {}
        for entry in self.value:
            key, same = _key(entry), 1
            while (named := key if same == 1 else f"{key} #{same}") in found:
                same += 1
            found[named] = entry
        return found

    def with_entries(self, entries: Mapping[Any, Any]) -> "File":
        """Return the file with other entries."""
        if not self.kind.entries:
            return self
        value = (
            sorted(entries.values(), key=_key) if self.kind.listed else {key: entries[key] for key in sorted(entries)}
        )
        return self._replace(value=value)

    def place_of(self, key: Any) -> Place:
        """Return the place of an entry."""
        if not self.kind.entries:
            return self.place
        if not self.kind.listed:
            return self.place.at(key)
        return self.place.at(list(self.entries()).index(key)) if key in self.entries() else self.place


Files = dict[tuple[str, str], File]  # (name of the kind, scope) -> file


def installation() -> Files:
    """Return the files of the installation as it is."""
    found: Files = {}
    for kind in KINDS:
        for scope, value in kind.read().items():
            if value or not kind.sparse:
                found[kind.name, scope] = file_of(kind, scope, value, Place(kind.path(scope)))
    return found


def file_of(kind: Kind, scope: str, value: Any, place: Place) -> File:
    """Return a file in its one form. Raises Invalid, with file and line, if it has another shape."""
    if kind.shape is None:
        return File(kind, scope, kind.normal(value), place)
    empty: Any = [] if kind.listed else {}
    found = checked(empty if value is None else value, kind.shape, place)
    if not kind.entries:
        return File(kind, scope, _normal(kind, found, place), place)
    if not kind.listed:
        return File(kind, scope, {key: _normal(kind, entry, place.at(key)) for key, entry in found.items()}, place)
    rows = [(_normal(kind, entry, place.at(number)), number) for number, entry in enumerate(found)]
    rows.sort(key=lambda row: _key(row[0]))
    lines = {
        (new, *trail[1:]): line
        for new, (_, old) in enumerate(rows)
        for trail, line in place.lines.items()
        if trail[:1] == (old,)
    }
    return File(kind, scope, [entry for entry, _ in rows], Place(place.file, lines))


def _normal(kind: Kind, entry: Any, place: Place) -> Any:
    try:
        return kind.normal(entry)
    except Invalid as error:
        raise place.error(error.message) from None


def _key(entry: Any) -> str:
    return entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)


# -- reading -------------------------------------------------------------------------------------------------------------
def read_folder(folder: Path) -> Files:
    """Return the files of a folder. Files of other endings than ours are left alone.

    Raises Invalid, in one sentence with file and line, if the folder is no such text, or a file is wrong.
    """
    if not folder.is_dir():
        raise Invalid(f"there is no folder '{folder}'")
    _check_mark(folder)
    found: Files = {}
    for kind, scope, path in _paths(folder):
        content = _content(path, kind.path(scope))
        if kind.shape is None:
            found[kind.name, scope] = file_of(kind, scope, content, Place(kind.path(scope)))
        else:
            value, place = read(content, kind.path(scope))
            found[kind.name, scope] = file_of(kind, scope, value, place)
    return found


def _check_mark(folder: Path) -> None:
    path = folder / MARK
    if not path.is_file():
        raise Invalid(f"the folder has no {MARK}, so it is no text of an installation; write one by 'manage.py export'")
    value, place = read(_content(path, MARK), MARK)
    if not isinstance(value, dict) or value.get("form") != FORM:
        raise place.error(f"expected 'form: {FORM}', which is the form that this release reads")
    if value.get(_UNFINISHED):
        raise Invalid(
            f"in {MARK}: the export of this folder was broken off; export it again, or take the line '{_UNFINISHED}' out"
        )


def _paths(folder: Path) -> Iterator[tuple[Kind, str, Path]]:
    """Yield the files of the kinds. Raises Invalid for a file with an ending of ours that is of no kind."""
    whole = {kind.file: kind for kind in KINDS if not kind.of_model}
    for path in sorted(folder.iterdir()):
        if path.name in whole:
            yield whole[path.name], INSTALLATION, path
        elif path.suffix in _OURS and path.name != MARK:
            raise Invalid(f"the file {path.name} is none of a text; expected {', '.join(whole)}")
    of_model = {kind.file: kind for kind in KINDS if kind.of_model}
    for model in sorted((folder / _MODELS).iterdir()) if (folder / _MODELS).is_dir() else ():
        for path in sorted(model.iterdir()) if model.is_dir() else ():
            if path.name in of_model:
                yield of_model[path.name], model.name, path
            elif path.suffix in _OURS:
                where = f"{_MODELS}/{model.name}/{path.name}"
                raise Invalid(f"the file {where} is none of a model; expected {', '.join(of_model)}")


def _content(path: Path, shown: str) -> str:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise Invalid(f"in {shown}: expected a file, not a link or a folder")
        if status.st_size > _MOST_BYTES:
            raise Invalid(f"in {shown}: the file has {status.st_size} bytes; at most {_MOST_BYTES} are read")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise Invalid(f"in {shown}: the file is not UTF-8") from None
    except OSError as error:
        raise Invalid(f"in {shown}: the file cannot be read: {error.strerror}") from None


# -- writing -------------------------------------------------------------------------------------------------------------
def write_folder(folder: Path, files: Files) -> int:
    """Write files into a folder, which is made if it is missing, and return how many have changed.

    A file of a kind that is not among them is removed; any other file stays. Raises Invalid for a folder that has files and is
    no text of an installation.
    """
    if folder.exists() and not folder.is_dir():
        raise Invalid(f"'{folder}' is no folder")
    if folder.is_dir() and not (folder / MARK).exists() and any(one.name != ".git" for one in folder.iterdir()):
        raise Invalid(
            f"the folder '{folder}' has files, but no {MARK}; name an empty folder, or one of an earlier export"
        )
    folder.mkdir(parents=True, exist_ok=True)
    texts = {file.path: file.text for file in files.values()}
    known = {kind.file for kind in KINDS}
    there = [*folder.glob("*.yaml"), *folder.glob(f"{_MODELS}/*/*")]
    stale = [path for path in there if path.name in known and path.relative_to(folder).as_posix() not in texts]
    changed = [path for path, text in texts.items() if not _holds(folder / path, text)]
    if changed or stale or not _holds(folder / MARK, _mark()):
        (folder / MARK).write_text(_mark(unfinished=True), "utf-8")  # so that half of an export is never applied
        for path in changed:
            _write(folder, path, texts[path])
        for gone in stale:
            gone.unlink()
            if gone.parent != folder and not any(gone.parent.iterdir()):
                gone.parent.rmdir()
        (folder / MARK).write_text(_mark(), "utf-8")
    return len(changed) + len(stale)


def _write(folder: Path, name: str, text: str) -> None:
    """Write a file; a link, which a commit may hold, is replaced and not followed."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise Invalid(f"in {name}: its folder is a link that leads elsewhere; remove it")
    if path.is_symlink():
        path.unlink()
    path.write_text(text, "utf-8", newline="")


def _holds(path: Path, text: str) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode()


def _mark(*, unfinished: bool = False) -> str:
    return written({"form": FORM, **({_UNFINISHED: True} if unfinished else {})})


def write_archive(stream: IO[bytes], files: Files) -> None:
    """Write files as a .tar.gz; the same files give the same members, which have no time and no owner."""
    texts = {MARK: _mark(), **{file.path: file.text for file in files.values()}}
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(texts):
            content = texts[path].encode()
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
