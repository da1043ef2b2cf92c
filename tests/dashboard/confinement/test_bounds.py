"""A program that takes more than it may is ended, and the sentence names the bound and its value."""

import pytest

from dashboard.confinement.bounds import Bound
from dashboard.confinement.promises import Promise
from tests.dashboard.confinement.conftest import Confined, needs

pytestmark = needs(Promise.MEMORY, Promise.PROCESSES)

GROW = "held = []\nwhile True: held.append(bytearray(1 << 20))\n"
MEMORY = "512 MiB of memory"


@pytest.mark.parametrize(
    "code",
    ["held = bytearray(100 << 30)", GROW, "import mmap\nheld = mmap.mmap(-1, 100 << 30, flags=mmap.MAP_PRIVATE)\n"],
    ids=["at once", "in small pieces", "as a mapping"],
)
def test_a_process_gets_no_more_memory_than_it_may(confined: Confined, code: str) -> None:
    ended = confined.run(code)
    assert ended.status != 0
    assert MEMORY in ended.sentence


def test_many_children_together_get_no_more_memory_than_one(confined: Confined) -> None:
    code = """
import os, time
for _ in range(16):
    if os.fork() == 0:
        held = bytearray(os.urandom(1 << 20)) * 100
        time.sleep(600)
time.sleep(600)
"""
    ended = confined.run(code)
    assert (ended.bound, ended.status) == (Bound.MEMORY, -9)
    assert MEMORY in ended.sentence


def test_shared_mappings_count_as_memory(confined: Confined) -> None:
    code = """
import mmap, time
held = mmap.mmap(-1, 4 << 30)
for place in range(0, 4 << 30, 4096): held[place] = 1
"""
    ended = confined.run(code)
    assert ended.bound == Bound.MEMORY
    assert MEMORY in ended.sentence


def test_memory_that_processes_share_counts_once(confined: Confined) -> None:
    code = """
import os, time
held = bytearray(b"x" * (200 << 20))
children = []
for _ in range(6):
    child = os.fork()
    if child == 0:
        time.sleep(1)
        os._exit(0)
    children.append(child)
for child in children: os.waitpid(child, 0)
"""
    assert confined.run(code).sentence == ""


@pytest.mark.parametrize(
    "code",
    ["import os\nwhile True:\n  try: os.fork()\n  except OSError: pass\n", "import os\nwhile True: os.fork()"],
    ids=["goes on when it is refused", "ends where it is refused"],
)
def test_a_fork_bomb_is_ended(confined: Confined, code: str) -> None:
    ended = confined.run(code)
    assert ended.bound == Bound.PROCESSES
    assert "32 processes and threads" in ended.sentence


def test_the_kernel_refuses_many_more_processes_than_there_may_be(nobody: Confined) -> None:
    """A program that starts them faster than the dashboard counts stays bounded, too."""
    code = """
import os, time
count = 0
try:
    while os.fork(): count += 1
except OSError:
    print(count, flush=True)
time.sleep(600)
"""
    ended = nobody.run(code)
    assert ended.bound == Bound.PROCESSES
    assert nobody.lines in ([], ["63"])  # and the program itself


def test_a_loop_ends_with_its_cpu_time(confined: Confined) -> None:
    ended = confined.run("while True: pass", limits={"cpu_seconds": 1})
    assert ended.bound == Bound.CPU
    assert "1 s of CPU time" in ended.sentence


def test_the_cpu_time_of_all_processes_counts_together(confined: Confined) -> None:
    code = """
import os
while True:
    child = os.fork()
    if child == 0:
        for _ in range(3_000_000): pass
        os._exit(0)
    os.waitpid(child, 0)
"""
    assert confined.run(code, limits={"cpu_seconds": 2}).bound == Bound.CPU


@pytest.mark.parametrize(
    "code",
    ["import time\ntime.sleep(600)", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"],
    ids=["sleeps", "stops itself"],
)
def test_a_program_that_does_nothing_ends_with_its_time(confined: Confined, code: str) -> None:
    ended = confined.run(code, limits={"wall_seconds": 1})
    assert ended.bound == Bound.WALL
    assert ended.sentence == "The program was ended: it may take 1 s: give it less work, or allow it more time."


def test_signals_that_can_be_caught_do_not_keep_a_program_alive(confined: Confined) -> None:
    code = """
import signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True: pass
"""
    assert confined.run(code, limits={"wall_seconds": 1}).bound == Bound.WALL


def test_one_file_is_bounded(confined: Confined) -> None:
    ended = confined.run("with open('large', 'wb') as file:\n  while True: file.write(bytes(1 << 20))")
    assert "32 MiB of files" in ended.sentence
    assert (confined.folder / "large").stat().st_size <= 32 << 20


@pytest.mark.parametrize(
    "code",
    [
        "import itertools\nfor number in itertools.count():\n  open(f'{number}', 'wb').write(bytes(1 << 20))",
        "import itertools\nfor number in itertools.count(): open(f'{number}', 'wb').close()",
        "import os\nwhile True:\n  try: os.mkdir('deeper')\n  except OSError: break\n  os.chdir('deeper')\n"
        "while True: pass",
    ],
    ids=["many files", "empty files", "deep folders"],
)
def test_all_files_together_are_bounded(confined: Confined, code: str) -> None:
    ended = confined.run(code)
    assert ended.bound == Bound.FILES
    assert "32 MiB of files" in ended.sentence
    assert list(confined.folder.iterdir()) == []


@pytest.mark.parametrize(
    "code",
    ["while True: print('x' * 1000)", "import os\nwhile True: os.write(2, b'x' * 1000)"],
    ids=["lines", "without a line's end"],
)
def test_endless_output_is_ended(confined: Confined, code: str) -> None:
    ended = confined.run(code)
    assert ended.bound == Bound.OUTPUT
    assert "print 4 MiB" in ended.sentence
    assert max(map(len, confined.lines)) <= 2 << 16
