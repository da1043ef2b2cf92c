"""Imports the compiled modules instead of their sources, if there is a build of exactly these sources."""

import fcntl
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from serving.compiled.modules import MODULES, build_folder

VARIABLE = "SERVING_COMPILED"  # with the value "no", no build is used
SUFFIX = EXTENSION_SUFFIXES[0]
COMMON = "__mypyc"  # the suffix of the module that contains the code of all other modules
_REMEDY = "run `make compiled`"


class Compiled:
    """States whether this process runs compiled modules, as a flag and as a sentence. `use` sets both."""

    used = False
    sentence = "interpreted"


class _Finder(MetaPathFinder):
    """Finds the compiled modules of a build by their names."""

    def __init__(self, files: dict[str, Path]) -> None:
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, str(file)))


def use() -> None:
    """Import the modules in MODULES in compiled form from now on, if there is a build. Raises RuntimeError if one of them has
    already been imported."""
    if Compiled.used:
        return
    if os.environ.get(VARIABLE) == "no":
        Compiled.sentence = f"interpreted: {VARIABLE}=no"
        return
    folder = build_folder()
    if not _hold(folder):
        if folder.parent.is_dir() and any(folder.parent.iterdir()):
            Compiled.sentence = f"interpreted: the compiled modules are of other sources or another Python; {_REMEDY}"
        return
    early = [name for name in MODULES if name in sys.modules]
    if early:
        raise RuntimeError(f"{early[0]} was imported before its compiled form could be")
    files = files_of(folder)
    finder = _Finder(files)
    sys.meta_path.insert(0, finder)
    try:
        if missing := [name for name in MODULES if name not in files]:
            raise ImportError(f"{missing[0]} is missing")
        importlib.import_module(next(name for name in files if name.endswith(COMMON)))
    except ImportError as error:
        sys.meta_path.remove(finder)
        Compiled.sentence = f"interpreted: the compiled modules cannot be loaded ({error}); {_REMEDY}"
        return
    Compiled.used = True
    Compiled.sentence = f"compiled: {len(MODULES)} modules, build {folder.name}"


def _hold(folder: Path) -> bool:
    """Lock a build against removal while this process lives, for late imports. Return False if there is no build."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    with suppress(OSError):  # some file systems have no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return folder.is_dir()  # the folder may have been removed before it was locked


def in_use(folder: Path) -> bool:
    """Return whether a process has locked a build."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def files_of(folder: Path) -> dict[str, Path]:
    """Return a dict of module name -> the module's file in a build."""
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    return {".".join(path.relative_to(folder).parts).removesuffix(SUFFIX): path for path in files}
