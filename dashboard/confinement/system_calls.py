"""System calls of Linux for which Python has no function. OSError: the call failed, or this is another system."""

import ctypes
import errno
import os
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def call(number: int, *arguments: object) -> int:
    """Make the system call of this number. The arguments are integers, or pointers of ctypes."""
    _require_linux()
    return _checked(_LIBC.syscall(ctypes.c_long(number), *map(_word, arguments)))


def control(option: int, *arguments: object) -> int:
    """Call prctl(2)."""
    _require_linux()
    words = [*map(_word, arguments), *[ctypes.c_long(0)] * (4 - len(arguments))]
    return _checked(_LIBC.prctl(option, *words))


def unshare(flags: int) -> None:
    """Move this process, or its next children, into new namespaces."""
    _require_linux()
    _checked(_LIBC.unshare(flags))


def _require_linux() -> None:
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "this is not Linux")


def _word(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
