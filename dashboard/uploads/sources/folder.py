"""Files and folders of this machine that an administrator allows.

A link is followed only if it leads into an allowed folder. That is checked when files are listed, and again for the file that
was opened, because a link may be changed in between.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from django.conf import settings

from dashboard.shared.exceptions import Forbidden, Invalid, NotFound, Unavailable
from dashboard.uploads.sources.base import (
    Field,
    Pieces,
    Place,
    Source,
    SourceChanged,
    SourceFile,
    pieces,
    refuse_too_many,
)
from repository.core.addresses import leads_into

ADDRESS = Field("address", "File or folder", "{place}/model.onnx", "An absolute path on the machine of the dashboard.")


class Folder(Source):
    name, label, setting = "folder", "a folder", "SLIPWAY_SOURCE_FOLDERS"
    fields: tuple[Field, ...] = (ADDRESS,)

    def allowed_places(self) -> list[str]:
        return [str(folder) for folder in settings.SOURCE_FOLDERS]

    def files(self, place: Place) -> list[SourceFile]:
        return files_below(allowed_path(place["address"]))

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        root = allowed_path(place["address"])
        return read_file(root if root.is_file() else root / file.name, file, offset)


def allowed_path(text: str) -> Path:
    """Return an absolute path that leads into an allowed folder. Raises Forbidden."""
    path = Path(text)
    if "\0" in text or not path.is_absolute() or not is_allowed(path):
        raise Forbidden("this folder may not be read; an administrator allows folders by SLIPWAY_SOURCE_FOLDERS")
    return path


def is_allowed(path: Path) -> bool:
    """Return whether a path leads into an allowed folder after all links are followed."""
    return any(leads_into(path, folder) for folder in settings.SOURCE_FOLDERS)


def files_below(root: Path) -> list[SourceFile]:
    """Return the file `root`, or the files of the folder `root` and its folders, sorted by name."""
    try:
        if root.is_file():
            return [_described(root, root.name)]
        found: list[SourceFile] = []
        for path in _walk(root):
            refuse_too_many(len(found) + 1)
            found.append(_described(path, path.relative_to(root).as_posix()))
    except FileNotFoundError:
        raise NotFound(f"there is no file or folder '{root.name}' there") from None
    except OSError as error:
        raise Invalid(f"'{root.name}' cannot be read: {error.strerror}") from None
    if not found:
        raise Invalid(f"the folder '{root.name}' holds no files")
    return sorted(found)


def read_file(path: Path, file: SourceFile, offset: int) -> Pieces:
    """Yield the bytes of a file from an offset, as `Source.read` says."""
    try:
        with opened_inside(path) as stream:
            _refuse_changed(os.fstat(stream.fileno()), file)
            stream.seek(offset)
            yield from pieces(stream)
            _refuse_changed(os.fstat(stream.fileno()), file)
    except FileNotFoundError:
        raise SourceChanged(file.name, "was removed") from None
    except OSError as error:
        raise Unavailable(f"'{file.name}' cannot be read: {error.strerror}") from None


def opened_inside(path: Path) -> IO[bytes]:
    """Open a plain file of an allowed folder. Raises Forbidden if the file that was opened is somewhere else."""
    allowed_path(str(path))
    # Without waiting, because opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Invalid(f"'{path.name}' is not a plain file")
        allowed_path(os.path.realpath(f"/proc/self/fd/{descriptor}"))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _walk(root: Path) -> Iterator[Path]:
    for directory, folders, names in os.walk(root, onerror=_raise):
        for name in sorted([*folders, *names]):
            path = Path(directory, name)
            relative = path.relative_to(root).as_posix()
            if path.is_symlink() and not is_allowed(path):
                raise Forbidden(f"'{relative}' is a link that leads out of the allowed folders")
            if path.is_symlink() and path.is_dir():
                raise Invalid(f"'{relative}' is a link to a folder; name that folder itself")
            if name in names:
                yield path


def _raise(error: OSError) -> None:
    raise error


def _described(path: Path, name: str) -> SourceFile:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise Invalid(f"'{name}' is neither a file nor a folder")
    return SourceFile(name, found.st_size, _token(found))


def _token(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_ino}"


def _refuse_changed(found: os.stat_result, file: SourceFile) -> None:
    if _token(found) != file.token or found.st_size != file.size:
        raise SourceChanged(file.name, "was changed")
