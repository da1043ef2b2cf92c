"""`make test-changed`: which tests a change touches, and what counts as changed."""

import subprocess
from pathlib import Path

import pytest

from tests.support.serving_process import ROOT
from tools.changed_tests import WHOLE_TREE, changed_files, touched_by

# What is changed -> tests that run, tests that do not.
CASES = {
    "serving/core/waiters.py": (["tests/serving/core/test_waiters.py"], ["tests/serving/models/test_residency.py"]),
    "serving/scheduling/ensemble_run.py": (
        ["tests/serving/scheduling/test_ensembles.py"],
        ["tests/serving/test_boundaries.py"],  # it names the module, and is long
    ),
    "repository/config/residency.py": (["tests/repository/config/test_validation.py"], []),
    "serving/telemetry/traces/trace_file.py": (["tests/serving/telemetry/test_trace_file.py"], []),
    "tests/support/waiting_machine.py": (
        ["tests/serving/core/test_waiters.py", "tests/serving/scheduling/test_step_limits.py"],
        ["tests/serving/scheduling/test_ensembles.py"],
    ),
    "tests/serving/test_boundaries.py": (["tests/serving/test_boundaries.py"], []),
    "static/js/charts/axes.js": (["tests/javascript/charts/axes.test.js"], ["tests/javascript/architecture.test.js"]),
    "templates/jobs/job.html": (
        ["tests/dashboard/jobs/test_jobs_page.py"],
        ["tests/dashboard/uploads/test_uploads.py"],
    ),
    "docs/torchserve.md": (["tests/test_torchserve_page.py"], ["tests/test_requirements.py"]),
}


@pytest.mark.parametrize("path", CASES)
def test_a_change_runs_the_touched_by_its_room_and_those_that_name_it(path: str) -> None:
    run, left_out = CASES[path]
    found = touched_by({path}, ROOT)
    assert found >= {*run, *WHOLE_TREE}
    assert found.isdisjoint(left_out)


def test_every_file_of_a_program_has_a_room_of_tests() -> None:
    of_nothing = touched_by(set(), ROOT)
    for program in ("repository", "serving", "dashboard"):
        for folder in {path.parent for path in (ROOT / program).rglob("*.py")}:
            assert touched_by({f"{folder.relative_to(ROOT).as_posix()}/new.py"}, ROOT) > of_nothing, folder


def test_what_is_changed_is_committed_on_the_branch_or_not_at_all(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        person = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
        subprocess.run(["git", *person, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text(f"{name} of {len(list(tmp_path.iterdir()))}")

    git("init", "-b", "main")
    write("same", "committed", "staged", "changed", "gone", "elsewhere", ".gitignore")
    (tmp_path / ".gitignore").write_text("ignored")
    git("add", "-A")
    git("commit", "-m", "first")
    git("checkout", "-b", "branch")
    write("committed")
    git("commit", "-am", "second")
    git("checkout", "main")
    write("elsewhere")
    git("commit", "-am", "third")
    git("checkout", "branch")
    write("staged")
    git("add", "-A")
    write("changed", "new", "ignored")
    (tmp_path / "gone").unlink()
    assert changed_files(tmp_path, "main") == {"committed", "staged", "changed", "new", "gone"}
    with pytest.raises(SystemExit, match="absent"):
        changed_files(tmp_path, "absent")
