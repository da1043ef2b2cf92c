"""Finds what pickles import, without loading them: who confirms that a recipe may load a pickle sees this list first.

The instructions of a pickle (pickletools of the standard library) say it, except where arrays lie between them, as in joblib's
files; there the bytes are searched. Dangerous is what picklescan 1.0.5 (https://github.com/mmaitre314/picklescan) names, and
more. picklescan itself does not read the files, because it finds nothing in joblib's packed files, and nothing behind an array.
"""

import bz2
import gzip
import io
import lzma
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ANY = ""
# Module -> the names in it that can do harm; _ANY stands for all, also of modules below it.
_DANGEROUS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("os", "nt", "posix", "posixpath", "sys", "shutil", "pathlib", "tempfile", "io", "_io", "zipfile"), (_ANY,)
    ),
    **dict.fromkeys(("_osx_support", "_aix_support", "_pyrepl", "commands", "uuid", "imaplib", "sqlite3"), (_ANY,)),
    **dict.fromkeys(("httplib", "ssl", "idlelib", "lib2to3", "test", "unittest"), (_ANY,)),
    **dict.fromkeys(
        ("subprocess", "pty", "multiprocessing", "asyncio", "threading", "signal", "ctypes", "platform"), (_ANY,)
    ),
    **dict.fromkeys(
        ("socket", "http", "urllib", "requests", "httpx", "aiohttp", "smtplib", "ftplib", "webbrowser"), (_ANY,)
    ),
    **dict.fromkeys(("code", "codeop", "runpy", "importlib", "pkgutil", "inspect", "types", "gc", "pydoc"), (_ANY,)),
    **dict.fromkeys(("pickle", "_pickle", "dill", "cloudpickle", "marshal"), (_ANY,)),
    **dict.fromkeys(("bdb", "pdb", "timeit", "trace", "cProfile", "profile", "doctest"), (_ANY,)),
    **dict.fromkeys(("pip", "venv", "ensurepip", "distutils", "setuptools"), (_ANY,)),
    **dict.fromkeys(
        ("builtins", "__builtin__"),
        (
            "eval",
            "exec",
            "execfile",
            "compile",
            "open",
            "file",
            "getattr",
            "setattr",
            "__import__",
            "apply",
            "breakpoint",
        ),
    ),
    **dict.fromkeys(("operator", "_operator"), ("attrgetter", "methodcaller", "itemgetter")),
    "logging": ("FileHandler", "config", "handlers"),
    "functools": ("partial", "reduce"),
    "numpy": ("save", "load", "fromfile", "memmap"),
    **dict.fromkeys(("numpy.testing", "numpy.f2py", "numpy.ctypeslib", "numpy.distutils"), (_ANY,)),
    **dict.fromkeys(("pandas", "pandas.io.pickle"), ("read_pickle",)),
    "joblib": ("load",),
    **dict.fromkeys(("torch", "torch.serialization"), ("load",)),
    **dict.fromkeys(("torch.hub", "torch._dynamo", "torch._inductor", "torch.utils.bottleneck"), (_ANY,)),
    **dict.fromkeys(("torch.utils.collect_env", "torch.utils._config_module", "torch.utils.cpp_extension"), (_ANY,)),
    **dict.fromkeys(
        ("torch.utils.data.datapipes", "torch.fx.experimental", "torch.jit.unsupported_tensor_ops"), (_ANY,)
    ),
}
# A name with dots leads through modules that a module has imported, such as logging.os.system, and to what a function hides.
_DANGEROUS_ON_THE_WAY = {
    *("os", "nt", "posix", "sys", "subprocess", "shutil", "socket", "ctypes", "importlib", "builtins"),
    *("__builtins__", "__globals__", "__subclasses__", "__getattribute__", "__import__"),
}
COMPUTED = "an import whose name the pickle computes"
_MAX_BYTES = 1 << 30  # of a file that is unpacked
_TEXT = rb"(?:\x8c.|X.{4}|\x8d.{8})([\w.]{1,200})(?:\x94|q.|r.{4})?"
_SEARCHES = (re.compile(rb"c([\w.]{1,200})\n([\w.]{1,200})\n"), re.compile(_TEXT + _TEXT + rb"\x93", re.DOTALL))
_PACKED: tuple[tuple[bytes, Any], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ", lzma.open),
    (b"\x5d\x00\x00", lzma.open),
)


def imports_in(paths: list[Path]) -> dict[str, list[str]]:
    """Return the names that pickles import, those that are dangerous, and the files that could not be read to their end."""
    names: set[str] = set()
    unread = []
    for path in paths:
        try:
            whole = min([_collect(content, names) for content in _pickles(path)], default=True)
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError):
            whole = False  # it is damaged, or packed in another way
        if not whole:
            unread.append(path.name)
    return {"names": sorted(names), "dangerous": sorted(filter(is_dangerous, names)), "unread": sorted(unread)}


def is_dangerous(name: str) -> bool:
    """Return whether an import, such as os.system, can do harm when a pickle is loaded."""
    if name == COMPUTED:
        return True
    parts = name.split(".")
    if _DANGEROUS_ON_THE_WAY.intersection(parts[1:]):
        return True
    known = [(_DANGEROUS.get(".".join(parts[:at]), ()), parts[at]) for at in range(1, len(parts))]
    return any(_ANY in names or part in names for names, part in known)


def _pickles(path: Path) -> Iterator[bytes]:
    """Yield the contents of the pickles of a file: itself, unpacked, or those in a zip archive."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith((".pkl", ".pickle", ".joblib")):
                    with archive.open(name) as member:
                        yield member.read(_MAX_BYTES)
    elif head[:1] == b"\x78":  # zlib, joblib's default
        yield zlib.decompressobj().decompress(path.read_bytes(), _MAX_BYTES)
    else:
        unpack = next((unpack for magic, unpack in _PACKED if head.startswith(magic)), open)
        with unpack(path, "rb") as file:
            yield file.read(_MAX_BYTES)


def _collect(content: bytes, names: set[str]) -> bool:
    """Add the names that a pickle, or several in a row, imports. Return whether it was read to its end."""
    stream = io.BytesIO(content)
    at = 0
    try:
        while at < len(content):
            for name in _imports(stream):
                names.add(name)
            at = stream.tell()
    except Exception:  # arrays lie between the instructions, or it is damaged
        for search in _SEARCHES:
            names.update(f"{one[1].decode()}.{one[2].decode()}" for one in search.finditer(content, at))
        return False
    return True


def _imports(stream: io.BytesIO) -> Iterator[str]:
    """Yield the imports of one pickle. A stack and a memo of texts are enough: names are texts."""
    stack: list[str | None] = []
    memo: dict[int, str | None] = {}
    for instruction, argument, _ in pickletools.genops(stream):
        name = instruction.name
        if name in ("GLOBAL", "INST"):
            yield str(argument).replace(" ", ".", 1)
            stack.append(None)
        elif name == "STACK_GLOBAL":
            module, own = stack[-2:] if len(stack) > 1 else (None, None)
            yield f"{module}.{own}" if module and own else COMPUTED
            stack.append(None)
        elif name.startswith("EXT"):
            yield COMPUTED
            stack.append(None)
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1] if stack else None
        elif name.endswith("PUT"):
            memo[argument or 0] = stack[-1] if stack else None
        elif name.endswith("GET"):
            stack.append(memo.get(argument or 0))
        elif name not in ("PROTO", "FRAME"):
            stack.append(argument if isinstance(argument, str) else None)
