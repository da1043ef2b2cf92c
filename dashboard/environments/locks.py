"""A lock file: the packages of an environment, those that it borrows from the product, and the name of its folder."""

import hashlib
import re
import sys
import sysconfig
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

# An entry goes on over the lines that are indented: its hashes.
_ENTRY = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)[^\n]*(?:\n[ \t]+[^\n]*)*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Lock:
    """What a lock file asks for here. entries: package -> its lines, to be installed. borrowed: package -> version, of those
    that the product has in the very same version. missing: packages that only the product can give, and that it lacks."""

    name: str
    entries: dict[str, str]
    borrowed: dict[str, str]
    missing: tuple[str, ...]

    @property
    def hashed(self) -> bool:
        """Return whether every entry has a hash. Then pip refuses any other file, and nothing is built from source."""
        return all("--hash=" in lines for lines in self.entries.values())

    @property
    def remedy(self) -> str:
        """Return the file whose installation gives the product the packages that are missing."""
        return "requirements/gpu.txt" if "tensorrt-cu13" in self.missing else "requirements/torch.txt"

    @property
    def folder_name(self) -> str:
        """Return the lock's name and a digest of all that makes the environment: packages, this Python, what is borrowed."""
        parts = [
            sys.version,
            *self.entries.values(),
            *(f"{name}=={version}" for name, version in self.borrowed.items()),
        ]
        parts += [str(product_packages())] if self.borrowed else []
        return f"{self.name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


def product_packages() -> Path:
    """Return the folder of the packages that this Python has."""
    return Path(sysconfig.get_path("purelib")).resolve()


def read_lock(path: Path, *, name: str = "", borrow: bool = True) -> Lock:
    """Read a lock file. borrow: whether the environment sees the product's packages, and installs only what these lack.

    PyTorch and TensorRT are always the product's, so no lock has them: the CPU build and the CUDA build of PyTorch are
    different packages, and a plan is read only by the version of TensorRT that wrote it.
    """
    versions, entries = defaultdict(set), defaultdict(list)
    for entry in _ENTRY.finditer(path.read_text()):  # a package has two entries if its version depends on Python's
        versions[plain_name(entry[1])].add(entry[2])
        entries[plain_name(entry[1])].append(entry[0])
    asked = [plain_name(entry[1]) for entry in _ENTRY.finditer(path.with_suffix(".in").read_text())]
    others = [key for key in asked if key not in versions]
    present = _installed() if borrow or others else {}
    wanted = {key for key, found in versions.items() if borrow and present.get(key) in found}
    return Lock(
        name or path.stem,
        {key: "\n".join(lines) for key, lines in entries.items() if key not in wanted},
        {key: present[key] for key in sorted(wanted | (set(others) & set(present)))},
        tuple(key for key in others if key not in present),
    )


def plain_name(name: str) -> str:
    """Return a package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed() -> dict[str, str]:
    """Return the version of each package of the product, without a local part such as +cpu."""
    found = distributions(path=[str(product_packages())])
    return {plain_name(one.metadata["Name"]): one.version.partition("+")[0] for one in found}
