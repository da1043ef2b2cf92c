"""A port that one test was given is given to no other, in whichever process, before it is bound or after."""

import subprocess
import sys

from tests.support.ports import RESERVED, free_port, free_ports
from tests.support.serving_process import ROOT

PROGRAM = "import sys; from tests.support.ports import free_port; print(free_port(), flush=True); sys.stdin.read()"


def test_a_port_of_another_process_is_given_out_once_that_has_ended() -> None:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert not RESERVED.take(port)
        other.communicate()
    assert RESERVED.take(port)


def test_a_port_is_given_out_once() -> None:
    given = [*free_ports(50), *(free_port() for _ in range(50))]
    assert len(set(given)) == 100
    assert not any(RESERVED.take(port) for port in given)
