"""A run of many files tells at its end which took longest, and what they cost."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving_process import ROOT

HOOKS = "collection_finish", "runtest_logreport", "runtest_makereport", "terminal_summary"
CONFTEST = f"from tests.conftest import {', '.join(f'pytest_{name}' for name in HOOKS)}"
BUSY = r"""
import subprocess, sys
def test_one():
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"])
def test_another(): pass
"""


@pytest.mark.parametrize(("files", "told"), [(30, 0), (31, 31)])
def test_a_run_of_many_files_tells_the_slowest(tmp_path: Path, files: int, told: int) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(1, files):
        (tmp_path / f"test_{number}.py").write_text("def test_one(): pass\ndef test_another(): pass")
    (tmp_path / "test_busy.py").write_text(BUSY)
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
    lines = re.findall(r"([0-9.]+) s +([0-9.]+) s  (.*)", done.stdout)
    assert len(lines) == told
    if told:
        assert lines.pop()[2] == "all 31 files"
        assert max(lines, key=lambda line: float(line[1]))[2].endswith("test_busy.py")
