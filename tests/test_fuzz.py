"""`make fuzz` looks at other examples each time and keeps what fails; `make soak` goes on where it ended."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak.record import Record, markdown
from tests.support.serving_process import ROOT
from tools.fuzz import pytest as pytest_of_fuzz

CONFTEST = "from tests.conftest import pytest_collection_modifyitems"
# Writes each number that it is asked about into a file beside it.
LOOKS = """
from pathlib import Path
from hypothesis import given, settings, strategies as st

@settings(max_examples=20)
@given(number=st.integers(0, 2**60))
def test_it(number):
    with Path(__file__).with_name("seen").open("a") as file:
        file.write(f"{number}\\n")
    assert number < LIMIT
"""


def fuzz(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.fuzz", "--folder", str(folder / "findings"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def looks(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    path = tmp_path / "test_looks.py"
    path.write_text(LOOKS.replace("LIMIT", "2**61"))
    return path


def test_each_run_tries_other_examples_and_more_of_them(looks: Path) -> None:
    seen = []
    for _ in range(2):
        done = fuzz(looks.parent, "--seconds", "0", str(looks))
        assert done.returncode == 0, done.stdout
        seen.append(set((looks.parent / "seen").read_text().split()))
        (looks.parent / "seen").unlink()
    assert len(seen[0] & seen[1]) < 20 < len(seen[0])


def test_each_test_that_hypothesis_drives_can_be_given_a_seed() -> None:
    found = pytest_of_fuzz("--collect-only", "tests", environment={"FUZZ_SEED": "1", "PYTEST_ADDOPTS": ""})
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    assert "tests/serving/resources/test_rate_limiter_model.py::" in found.stdout


def test_a_finding_is_kept_with_the_command_that_repeats_it(looks: Path) -> None:
    looks.write_text(LOOKS.replace("LIMIT", "1000"))
    assert fuzz(looks.parent, "--seconds", "0", str(looks)).returncode == 1
    [kept] = (looks.parent / "findings").glob("*.txt")
    again = re.search(r"^again: python -m tools.fuzz (--again .+)$", kept.read_text(), re.MULTILINE)
    assert again is not None
    assert "number=1_000" in kept.read_text() or "number=1000" in kept.read_text()
    assert fuzz(looks.parent, *again[1].split()).returncode == 1


def test_a_soak_that_was_stopped_goes_on_from_its_count(tmp_path: Path) -> None:
    first = Record(tmp_path, 100, begin_anew=False)
    first.segment.answered["HTTP, ONNX"] += 60
    first.segment.fail("HTTP, Python", "503 the model 'a' ended after 7 s", "a Python child killed", True)
    first.save()
    second = Record(tmp_path, 100, begin_anew=False)
    assert second.left == 39
    second.segment.answered["HTTP, ONNX"] += 38
    second.segment.fail("HTTP, ONNX", "a wrong answer", "nothing", False)
    second.save()
    page = markdown(second, "1a2b3c4", "a machine")
    assert "Commit 1a2b3c4; machine: a machine." in page
    assert "100 requests" in page
    assert "| expected | a Python child killed | 503 the model '...' ended after N s | 1 |" in page
    assert "| UNEXPECTED | nothing | a wrong answer | 1 |" in page
    assert second.unexpected == 1
    assert Record(tmp_path, 100, begin_anew=False).left == 100, "that one is over"
    assert len(json.loads((tmp_path / "soak.json").read_text())) == 2
