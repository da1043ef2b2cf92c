"""Landlock: the kernel refuses every file, port and abstract socket that no rule allows (kernel documentation, Landlock)."""

import ctypes
import os
import stat

from dashboard.confinement.system_calls import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # the flag of _CREATE_RULESET that asks for the version of the interface
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

READ = _EXECUTE | _READ_FILE | _READ_DIR
# No links, pipes, sockets or devices: a later reader of the folder could be misled by them.
WRITE = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
DEVICE = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """Return the version of the kernel's Landlock, 0 without one."""
    try:
        return call(_CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict(abi: int, rules: list[tuple[str, int]]) -> None:
    """Allow this process, and all that it starts, the given accesses below the given paths, and nothing else."""
    handled = _handled(abi)
    ports, scopes = (3 if abi >= 4 else 0), (3 if abi >= 6 else 0)  # bind and connect; abstract sockets and signals
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = call(_CREATE_RULESET, ctypes.byref(_Ruleset(handled, ports, scopes)), size, 0)
    for path, access in rules:
        _allow(ruleset, path, access & handled)
    call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _handled(abi: int) -> int:
    return (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no rule
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        access &= _ON_FILES
    call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(_PathBeneath(access, place)), 0)
    os.close(place)
