"""Where the machine lacks a means, nothing runs until the promise is given up by name, and the other promises are kept."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboard.confinement import promises, seccomp
from dashboard.confinement.bounds import Bound, Limits
from dashboard.confinement.program import run
from dashboard.confinement.promises import Means, Promise, Protections, Unprotected, protections
from dashboard.shared.exceptions import Unavailable
from tests.dashboard.confinement.conftest import LIMITS, Confined, gone
from tests.dashboard.confinement.test_processes import DAEMON

ALL = Means(
    landlock=7, seccomp=True, user=True, network=True, pids=True, pid_bound=True, counts_processes=True
)  # fmt: skip


@pytest.mark.parametrize(
    ("lacks", "missing"),
    [
        ({}, set()),
        ({"network": False}, set()),
        ({"landlock": 0}, {Promise.READS, Promise.WRITES}),
        ({"landlock": 2}, {Promise.WRITES}),
        ({"seccomp": False}, {Promise.WRITES, Promise.CONNECTIONS}),
        ({"pid_bound": False}, set()),
        ({"counts_processes": False}, set()),
        ({"counts_processes": False, "pid_bound": False}, {Promise.PROCESSES}),
        ({"user": False, "pids": False, "network": False}, {Promise.PROCESSES, Promise.OTHERS}),
        ({"pids": False, "landlock": 5}, {Promise.OTHERS, Promise.END}),
    ],
)
def test_a_promise_without_its_means_is_missing_with_a_sentence(lacks: dict[str, Any], missing: set[Promise]) -> None:
    found = Protections(replace(ALL, **lacks))
    assert set(found.missing) == missing
    assert all(sentence.startswith("needs ") for sentence in found.missing.values())


def test_a_machine_whose_means_cannot_be_found_out_keeps_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "LAUNCHER", [sys.executable, "-c", "import sys; sys.exit('broken')"])
    assert set(protections.__wrapped__().missing) == set(Promise) - {Promise.MEMORY}


def test_a_trial_that_is_killed_says_nothing_about_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    protections.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(promises, "LAUNCHER", [sys.executable, "-c", killed])
        with pytest.raises(Unavailable, match="try again"):
            protections()
    assert protections().means.seccomp == seccomp.available()


def start(folder: Path, found: Protections, *given_up: Promise, command: str = sys.executable) -> str:
    """Run a program that prints "ran"; return what it printed."""
    lines: list[str] = []
    run(
        [command, "-c", "print('ran')"],
        folder=folder,
        reads=[],
        limits=Limits(**LIMITS),
        environment={},
        check=lambda: None,
        on_line=lines.append,
        found=found,
        given_up=given_up,
    )
    return "".join(lines)


def test_nothing_runs_unless_each_missing_promise_is_given_up(tmp_path: Path) -> None:
    found = Protections(replace(protections().means, landlock=0))
    others = [promise for promise in Promise if promise not in (Promise.READS, Promise.WRITES)]
    with pytest.raises(Unprotected, match="cannot read other files: needs Landlock") as raised:
        start(tmp_path, found, *others)
    assert set(raised.value.missing) == {Promise.READS, Promise.WRITES}
    with pytest.raises(Unprotected) as raised:
        start(tmp_path, found, Promise.READS, *others)
    assert set(raised.value.missing) == {Promise.WRITES}
    assert start(tmp_path, found, Promise.READS, Promise.WRITES, *others) == "ran"


def test_a_program_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="the program could not be started"):
        start(tmp_path, protections(), *Promise, command="/nowhere/python")


WITHOUT = {
    "Landlock": {"landlock": 0},
    "seccomp": {"seccomp": False},
    "a namespace of processes": {"pids": False},
    "a namespace of the network": {"network": False},
    "namespaces": {"user": False, "network": False, "pids": False},
    "anything": {"user": False, "network": False, "pids": False, "landlock": 0, "seccomp": False},
}


@pytest.fixture(params=WITHOUT)
def lacking(request: pytest.FixtureRequest, confined: Confined) -> Confined:
    """Programs on a machine that lacks one means, or all."""
    confined.lacks = WITHOUT[request.param]
    return confined


def test_a_program_runs_with_the_means_that_are_there(lacking: Confined) -> None:
    ended = lacking.run("print('ran', flush=True)\nraise SystemExit(3)")
    assert (ended.status, lacking.lines) == (3, ["ran"])


def test_bounds_hold_with_the_means_that_are_there(lacking: Confined) -> None:
    assert lacking.run("import time\ntime.sleep(600)", limits={"wall_seconds": 1}).bound == Bound.WALL
    assert "512 MiB of memory" in lacking.run("bytearray(100 << 30)").sentence


def test_a_daemon_ends_with_the_program(lacking: Confined) -> None:
    assert lacking.run(DAEMON).sentence == ""
    assert lacking.processes() == []


def test_the_program_ends_when_the_dashboard_is_killed(lacking: Confined) -> None:
    with lacking.runner(lacking.order(DAEMON + "print('started', flush=True)\ntime.sleep(600)")) as runner:
        assert runner.stdout is not None
        assert "started" in runner.stdout.readline()
        runner.kill()
    gone(lacking)


def test_without_landlock_there_is_no_connection_all_the_same(confined: Confined) -> None:
    confined.lacks = WITHOUT["Landlock"]
    confined.run("import socket\nprint(open('/etc/passwd').readline(), flush=True)\nsocket.socket()")
    assert "root" in confined.lines[0]
    assert "OSError" in confined.lines[-1]


def test_without_seccomp_the_network_is_empty_all_the_same(confined: Confined) -> None:
    confined.lacks = WITHOUT["seccomp"]
    if not protections().means.network:
        pytest.skip("this machine has no namespaces of the network")
    code = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))"
    assert "unreachable" in confined.run(code).sentence
