"""`.ci/run` takes every step whatever those before it said, and tells of each that failed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.serving_process import ROOT

# What the script looks for on the machine; here each does nothing, so that it neither installs nor runs anything.
COMMANDS = ("python3", "chromium", "redis-server", "git", "curl", "valgrind", "java", "gcc", "apt-get", "sudo")
MAKE = """#!/bin/sh
echo "$@" >> "$CALLS"
case " $FAILING " in *" $1 "*) exit 2;; esac
"""


def ci(folder: Path, *, failing: str = "") -> tuple[int, str, list[str]]:
    """Run the script with a `make` that only notes its targets: (exit status, output, the targets in order)."""
    commands = folder / "commands"
    (folder / ".ci").mkdir(parents=True)
    commands.mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    for name in (*COMMANDS, "make"):
        (commands / name).write_text(MAKE if name == "make" else "#!/bin/sh\n")
        (commands / name).chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "FAILING": failing,
        "CALLS": f"{folder}/calls",
    }
    done = subprocess.run([folder / ".ci" / "run"], env=variables, capture_output=True, text=True)
    return done.returncode, done.stdout, [line.split()[0] for line in (folder / "calls").read_text().splitlines()]


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    status, output, called = ci(tmp_path_factory.mktemp("passing"))
    assert status == 0
    assert output.endswith("Every step passed.\n")
    return called


def test_the_checks_the_tests_and_the_instructions_are_steps(targets: list[str]) -> None:
    assert {"check", "test", "bench-instructions"} <= set(targets)


def test_the_compiled_modules_are_made_counted_and_tested(targets: list[str]) -> None:
    steps = [target for target in targets if "compiled" in target]
    assert steps == ["compiled", "bench-instructions-compiled", "test-compiled"]


def test_every_step_is_taken_whichever_fails_and_the_summary_names_it(tmp_path: Path, targets: list[str]) -> None:
    for place, failing in enumerate(targets):
        status, output, called = ci(tmp_path / str(place), failing=failing)
        assert status == 1, failing
        assert called == targets, f"after {failing} failed"
        assert len(output.partition("These steps failed:\n")[2].splitlines()) == 1, output


def test_the_summary_names_each_step_that_failed(tmp_path: Path, targets: list[str]) -> None:
    status, output, called = ci(tmp_path, failing=" ".join(targets))
    assert (status, called) == (1, targets)
    assert len(output.partition("These steps failed:\n")[2].splitlines()) == len(targets)
