"""A run of many files tells at its end which ten took longest."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving_process import ROOT

CONFTEST = "from tests.conftest import pytest_runtest_logreport, pytest_terminal_summary"


@pytest.mark.parametrize(("files", "told"), [(10, 0), (11, 10)])
def test_a_run_of_many_files_tells_the_ten_slowest(tmp_path: Path, files: int, told: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(files):
        (tmp_path / f"test_{number}.py").write_text("def test_one(): pass\ndef test_another(): pass")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(" s  ") == told
