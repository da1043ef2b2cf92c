"""A program opens no connection, of whatever family."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.confinement.promises import Promise
from tests.dashboard.confinement.conftest import Confined, needs

pytestmark = needs(Promise.CONNECTIONS)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server of the machine, at addresses of each family."""
    sockets = []
    addresses = {}
    for name, family, address in (
        ("TCP", socket.AF_INET, ("127.0.0.1", 0)),
        ("IPv6", socket.AF_INET6, ("::1", 0)),
        ("abstract", socket.AF_UNIX, "\0confined-" + tmp_path.parent.name),
        ("unix", socket.AF_UNIX, "/tmp/confined-" + tmp_path.parent.name),
    ):
        one = socket.socket(family, socket.SOCK_STREAM)
        one.bind(address)
        one.listen()
        sockets.append(one)
        addresses[name] = repr(one.getsockname())
    yield addresses
    for one in sockets:
        one.close()
    Path(addresses["unix"].strip("'")).unlink()


@pytest.mark.parametrize(
    "code",
    [
        "socket.create_connection(TCP)",
        "socket.socket(socket.AF_INET6, socket.SOCK_STREAM).connect(IPv6)",
        "socket.socket(socket.AF_UNIX).connect(unix)",
        "socket.socket(socket.AF_UNIX).connect(abstract)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', TCP)",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM).bind(('', 0))",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', unix)",
        "socket.socketpair()[0].connect(unix)",
        "socket.getaddrinfo('example.org', 80)",
    ],
)
def test_no_connection_is_opened(confined: Confined, listener: dict[str, str], code: str) -> None:
    addresses = "".join(f"{name} = {address}\n" for name, address in listener.items())
    ended = confined.run(f"import socket\n{addresses}{code}\nprint('connected')")
    assert ended.status == 1
    assert "connected" not in confined.lines
    if "getaddrinfo" not in code:
        assert "it may open no connection" in ended.sentence


def test_io_uring_and_the_other_ways_round_the_filter_are_closed(confined: Confined) -> None:
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
for number in (425, 435, 0x40000000 | 41):  # io_uring_setup, clone3, and socket by the numbers of x32
    assert libc.syscall(ctypes.c_long(number), 2, 1, 0, 0, 0, 0) == -1
    assert ctypes.get_errno() == errno.ENOSYS, number
assert libc.unshare(0x10000000) == -1
assert ctypes.get_errno() == errno.EPERM
"""
    assert confined.run(code).sentence == ""


def test_pairs_and_pipes_between_its_own_processes_work(confined: Confined) -> None:
    code = """
import asyncio, socket, subprocess
async def child():
    process = await asyncio.create_subprocess_exec("echo", "hello", stdout=subprocess.PIPE)
    return (await process.communicate())[0]
print(asyncio.run(child()).decode())
"""
    assert confined.run(code).sentence == ""
    assert confined.lines == ["hello"]
