"""A seccomp filter: the kernel refuses the system calls by which a program would reach beyond its process and its files.

The filter is a program for the kernel's classic BPF (kernel documentation, Seccomp BPF). It names the system calls that it
refuses; all others are allowed.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from dashboard.confinement.system_calls import call, control

_SET_SECCOMP, _FILTER = 22, 2
_SECCOMP, _ACTION_AVAILABLE = {"x86_64": 317, "aarch64": 277}, 2
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # places in struct seccomp_data
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # from here on, x86_64 has the numbers of its second interface

_REFUSED = _ERRNO | errno.EPERM
_UNREACHABLE = _ERRNO | errno.ENETUNREACH  # programs take it as "there is no network"
_ABSENT = _ERRNO | errno.ENOSYS  # libraries know another way without these
_IGNORED = _ERRNO  # an error of 0: the call seems to succeed

# Landlock does not refuse changes of modes, owners, times and attributes. Tools change these of their own files as well, so
# the calls do nothing and succeed.
_CALLS: dict[int, dict[str, tuple[int, ...]]] = {
    _UNREACHABLE: {
        "x86_64": (41, 42, 49, 50, 43, 288),  # socket connect bind listen accept accept4
        "aarch64": (198, 203, 200, 201, 202, 242),
    },
    _ABSENT: {  # clone3 hides its flags from filters; io_uring opens sockets; memory files belong to no process
        "x86_64": (435, 425, 426, 427, 319, 447),  # clone3 io_uring_{setup,enter,register} memfd_create memfd_secret
        "aarch64": (435, 425, 426, 427, 279, 447),
    },
    _IGNORED: {  # {,f,l}chmod* {,f,l}chown* {,fut}utime* {,f,l}{set,remove}xattr*, file_setattr
        "x86_64": (90, 91, 268, 452, 92, 93, 94, 260, 132, 235, 261, 280, 188, 189, 190, 197, 198, 199, 463, 466, 469),
        "aarch64": (52, 53, 452, 55, 54, 88, 5, 6, 7, 14, 15, 16, 463, 466, 469),
    },
    _REFUSED: {
        # ptrace process_vm_{readv,writev} kcmp pidfd_getfd perf_event_open bpf userfaultfd keyctl add_key request_key unshare
        # setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
        # open_tree_attr shmget semget msgget mq_open open_by_handle_at {init,finit,delete}_module kexec_{,file_}load
        "x86_64": (
            *(101, 310, 311, 312, 438, 298, 321, 323, 250, 248, 249, 272, 308, 165, 166, 155, 161, 428, 429, 430, 431),
            *(432, 433, 442, 467, 29, 64, 68, 240, 304, 175, 313, 176, 246, 320),
        ),
        "aarch64": (
            *(117, 270, 271, 272, 438, 241, 280, 282, 219, 217, 218, 97, 268, 40, 39, 41, 51, 428, 429, 430, 431),
            *(432, 433, 442, 467, 194, 190, 186, 180, 265, 105, 273, 106, 104, 294),
        ),
    },
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_NEW_NAMESPACES = 0x7E020000
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
_UNIX, _STREAM, _SEQPACKET = 1, 1, 5  # the pairs that cannot be connected to anything else


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def available() -> bool:
    """Return whether this machine takes the filter."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return False
    try:
        return call(_SECCOMP[machine], _ACTION_AVAILABLE, 0, ctypes.byref(ctypes.c_uint32(_ERRNO))) == 0
    except OSError:
        return False


def restrict() -> None:
    """Refuse the calls to this process and to all that it starts. It must have set no_new_privs."""
    code = b"".join(_instructions(os.uname().machine))
    control(_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(code) // 8, code)))


def _instructions(machine: str) -> Iterator[bytes]:
    yield _one(_LOAD, _ARCHITECTURE)
    yield _one(_EQUAL, _ARCHITECTURES[machine], 1, 0)
    yield _one(_RETURN, _KILL)
    yield _one(_LOAD, _NUMBER)
    yield _one(_AT_LEAST, _X32, 0, 1)
    yield _one(_RETURN, _ABSENT)
    for answer, numbers in _CALLS.items():
        for number in numbers[machine]:
            yield _one(_EQUAL, number, 0, 1)
            yield _one(_RETURN, answer)
    yield from _if(_CLONE[machine], _argument(0), _one(_ANY_BIT, _NEW_NAMESPACES, 0, 1), _one(_RETURN, _REFUSED))
    yield from _if(_PRLIMIT[machine], _argument(0), _one(_EQUAL, 0, 1, 0), _one(_RETURN, _REFUSED))
    yield from _if(
        _SOCKETPAIR[machine],
        *(_argument(0), _one(_EQUAL, _UNIX, 0, 4)),
        *(_argument(1), _one(_AND, 0xF), _one(_EQUAL, _STREAM, 2, 0), _one(_EQUAL, _SEQPACKET, 1, 0)),
        _one(_RETURN, _UNREACHABLE),
    )
    yield _one(_RETURN, _ALLOW)


def _if(number: int, *instructions: bytes) -> Iterator[bytes]:
    yield _one(_EQUAL, number, 0, len(instructions) + 1)
    yield from instructions
    yield _one(_RETURN, _ALLOW)


def _argument(index: int) -> bytes:
    return _one(_LOAD, _ARGUMENTS + 8 * index)  # its lower half: both machines are little-endian


def _one(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
