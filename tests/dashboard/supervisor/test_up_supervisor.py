"""The supervisor with small processes that misbehave: deaf, hung, talkative, with children of their own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from django.conf import settings

from dashboard.shared.heartbeat import heard_since_last
from dashboard.supervisor import guardian, supervisor
from dashboard.supervisor.process import Probe, ProcessSpec
from dashboard.supervisor.supervisor import Status, Supervisor
from tests.dashboard.supervisor.test_up import command_line
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until

SAY_READY = "print('ready', flush=True); "
SLEEP = "import time; time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SAY_READY + SLEEP

Changes = list[tuple[Status, str, str]]


def spec(tmp_path: Path, code: str, **extra: object) -> ProcessSpec:
    return ProcessSpec(
        name="child",
        title="child",
        command=(sys.executable, "-c", code),
        log=tmp_path / "child.log",
        folder=tmp_path,
        stop=((signal.SIGTERM, 0.3),),
        **{"says_ready": b"ready", **extra},
    )


def run(one: ProcessSpec, done: Callable[[Changes], bool]) -> Changes:
    """Supervise it until `done` is content with what was told, then stop."""
    changes: Changes = []

    async def scenario() -> None:
        watched = Supervisor([one], [("child",)], lambda *change: changes.append(change))
        running = asyncio.create_task(watched.run(on_live=_nothing))
        async with asyncio.timeout(PATIENCE_S):
            while not done(changes):
                await asyncio.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)
        await running

    asyncio.run(scenario())
    return changes


async def _nothing() -> None:
    """What follows when everything answers is not looked at here."""


def sentences(changes: Changes, kind: str) -> list[str]:
    return [sentence for _, this, sentence in changes if this == kind]


def test_a_deaf_process_is_killed_when_its_time_is_over(tmp_path: Path):
    changes = run(spec(tmp_path, DEAF), lambda changes: bool(sentences(changes, "started")))
    assert changes[-1][0].state == "stopped"
    pid = next(status.pid for status, kind, _ in changes if kind == "started")
    assert not psutil.pid_exists(pid)


def test_children_of_a_dead_process_go_before_it_is_restarted(tmp_path: Path):
    code = (
        "import subprocess, sys, os, signal; "
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); print(child.pid, 'ready', flush=True); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    changes = run(spec(tmp_path, code), lambda changes: len(sentences(changes, "crashed")) >= 2)
    assert sentences(changes, "crashed")[0].startswith("The child was killed by SIGKILL after")
    children = [int(line.split()[0]) for line in (tmp_path / "child.log").read_text().splitlines()]
    assert len(children) >= 2
    wait_until(lambda: not any(map(psutil.pid_exists, children)), what="no child of a child is left")


def test_the_last_words_of_a_process_that_gives_up_are_told(tmp_path: Path):
    changes = run(
        spec(tmp_path, "raise SystemExit('the port is taken')"), lambda changes: bool(sentences(changes, "crashed"))
    )
    sentence = sentences(changes, "crashed")[0]
    assert "ended with exit code 1" in sentence
    assert sentence.endswith("Its last words: the port is taken")


def test_a_server_that_native_code_ends_is_reported_with_the_model_and_the_last_words(tmp_path: Path):
    code = (
        f"import faulthandler, os, sys; sys.path.insert(0, {str(ROOT)!r}); faulthandler.enable(); "
        "from pathlib import Path; from serving.execution.crash_trace import runner; "
        "print('Assertion failed: rows > 0', flush=True); runner('loading', 'digits', 3, Path('a/model.onnx'))(os.abort)"
    )
    changes = run(spec(tmp_path, code), lambda changes: bool(sentences(changes, "crashed")))
    sentence = sentences(changes, "crashed")[0]
    assert sentence.startswith("The child was killed by SIGABRT after")
    assert " while loading version 3 of model 'digits' (model.onnx); it is restarted" in sentence
    assert sentence.endswith("Its last words: Assertion failed: rows > 0")


def test_a_hung_process_is_replaced(tmp_path: Path):
    answered = iter([True])

    async def answers() -> bool:
        return next(answered, False)

    hung = spec(tmp_path, SAY_READY + SLEEP, make_probe=lambda: answers, hung_after_s=0.3)
    changes = run(hung, lambda changes: changes[-1:] and changes[-1][0].restarts == 1)
    assert "it had not answered for" in sentences(changes, "stopped")[0]


def test_a_process_that_hangs_before_its_first_answer_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(supervisor, "START_FACTOR", 2.0)
    changes = run(
        spec(tmp_path, SLEEP, hung_after_s=0.5), lambda changes: changes[-1:] and changes[-1][0].restarts == 1
    )
    assert "it had not answered for 1 s" in sentences(changes, "stopped")[0]


def test_the_last_heartbeat_of_a_dead_process_is_no_answer_of_the_next(tmp_path: Path):
    noticed, asked = tmp_path / "noticed", tmp_path / "asked"
    wait = "while not pathlib.Path({}).exists(): time.sleep(0.01)"
    code = f"""import os, pathlib, signal, time
print("ready", flush=True)
beat = pathlib.Path({str(settings.HEARTBEAT_DIR)!r}, f"watch.{{os.getpid()}}.{{os.getppid()}}.1")
if not pathlib.Path({str(noticed)!r}).exists():
    beat.touch()
    {wait.format(repr(str(noticed)))}
    beat.touch()
else:
    {wait.format(repr(str(asked)))}
os.kill(os.getpid(), signal.SIGKILL)
"""
    runs = 0

    def make_probe() -> Probe:
        nonlocal runs
        runs += 1
        heard = heard_since_last("watch")

        async def probe() -> bool:
            answer = await heard()
            if runs == 2:
                asked.touch()
            return answer

        return probe

    def died_twice(changes: Changes) -> bool:
        if sentences(changes, "started"):
            noticed.touch()
        return len(sentences(changes, "crashed")) == 2

    changes = run(spec(tmp_path, code, make_probe=make_probe), died_twice)
    assert not sentences(changes, "restarted")


def test_nothing_is_restarted_once_it_is_to_end(tmp_path: Path):
    changes = run(spec(tmp_path, SAY_READY + SLEEP), lambda changes: bool(sentences(changes, "started")))
    assert [status.restarts for status, _, _ in changes] == [0] * len(changes)


@pytest.mark.parametrize(
    ("number", "hung_after_s", "how"),
    [(signal.SIGKILL, PATIENCE_S, "was killed by SIGKILL"), (signal.SIGSTOP, 3.0, "had not answered for 3 s")],
    ids=["killed", "stopped"],
)
def test_a_guardian_that_ends_or_hangs_is_replaced(tmp_path: Path, number: int, hung_after_s: float, how: str):
    """tests/dashboard/supervisor/test_up.py shows that the new guardian knows the running processes."""
    harmed: list[int] = []

    def replaced(changes: Changes) -> bool:
        if sentences(changes, "started") and not harmed:
            harmed.extend(guardians())
            os.kill(harmed[0], number)
        return "The guardian is back." in sentences(changes, "restarted")

    changes = run(spec(tmp_path, SAY_READY + SLEEP, hung_after_s=hung_after_s, make_probe=lambda: always), replaced)
    assert any(how in sentence and "guardian" in sentence for sentence in sentences(changes, "crashed"))
    assert len(harmed) == 1
    wait_until(lambda: not guardians(), what="the end of the guardian")


async def always() -> bool:
    return True


def guardians() -> list[int]:
    """The guardians that this process started."""
    children = psutil.Process().children()
    return [child.pid for child in children if guardian.__file__ in command_line(child.pid)]


def test_the_guardian_ends_what_is_left_when_its_input_closes():
    deaf = subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=True, stdout=subprocess.PIPE)
    gone = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    command = [sys.executable, "-I", "-S", guardian.__file__, "0.5"]
    with deaf, gone, subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as guard:
        assert deaf.stdout.readline() == b"ready\n"
        guard.stdin.write(f"+{deaf.pid}\n+{gone.pid}\n+{os.getpid()}\n-{os.getpid()}\n")
        guard.stdin.close()
        assert guard.wait(PATIENCE_S) == 0
        assert (deaf.wait(PATIENCE_S), gone.wait(PATIENCE_S)) == (-signal.SIGKILL, -signal.SIGTERM)


def test_a_command_does_not_run_if_up_dies_before_the_guardian_knows_of_it(tmp_path: Path):
    ran, held = tmp_path / "ran", tmp_path / "held"
    command = (sys.executable, "-c", f"import pathlib; pathlib.Path({str(ran)!r}).touch()")
    code = f"""import asyncio, os, pathlib, signal
from dashboard.supervisor.process import Child, ProcessSpec

def die(pid):
    pathlib.Path({str(held)!r}).write_text(str(pid))
    os.kill(os.getpid(), signal.SIGKILL)

folder = pathlib.Path({str(tmp_path)!r})
spec = ProcessSpec(name="child", title="child", command={command!r}, log=folder / "child.log", folder=folder)
asyncio.run(Child(spec, None).start(die))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == -signal.SIGKILL
    pid = int(held.read_text())
    wait_until(lambda: not command_line(pid), what="the end of the child")
    assert not ran.exists()
