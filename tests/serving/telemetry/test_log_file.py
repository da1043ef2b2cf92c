"""The file of the log: whatever becomes of it, lines that are logged later come, and all that were logged before the end."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from serving.telemetry.logs import _BoundedFileHandler
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until

LINES = 5000
LOGS_AND_ENDS = f"""
import logging, sys
from pathlib import Path
from serving.telemetry.logs import LogSettings, configure_logging

configure_logging(LogSettings(), Path(sys.argv[1]), max_bytes=int(sys.argv[2]))
for number in range({LINES}):
    logging.getLogger("a program").info("line %d", number)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    (tmp_path / "logs").mkdir()
    handler = _BoundedFileHandler(tmp_path / "logs" / "server.log", 0)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    yield logger
    handler.close()


def _text(folder: Path) -> str:
    file = folder / "server.log"
    return file.read_text() if file.exists() else ""


def _holds_deleted(folder: Path) -> bool:
    """Whether this process has a deleted file of the folder open."""
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            links.append(os.readlink(descriptor))
    return f"{folder}/server.log (deleted)" in links


def test_a_log_goes_on_when_its_folder_is_back(log: logging.Logger, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log.info("before")
    wait_until(lambda: "before" in _text(folder), what="the first line")
    shutil.rmtree(folder)
    log.info("meanwhile")
    wait_until(lambda: not _holds_deleted(folder), what="the end of the deleted file")
    folder.mkdir()
    log.info("after")
    wait_until(lambda: "after" in _text(folder), what="a line in the new folder")


def test_a_new_log_begins_when_the_file_is_moved_away(log: logging.Logger, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    log.info("before")
    wait_until(lambda: "before" in _text(folder), what="the first line")
    (folder / "server.log").rename(folder / "old.log")
    log.info("after")
    wait_until(lambda: _text(folder) == "after\n", what="a new file")
    assert (folder / "old.log").read_text() == "before\n"


@pytest.mark.parametrize("max_bytes", [0, 100_000])
def test_all_that_was_logged_before_a_program_ends_is_in_the_file(tmp_path: Path, max_bytes: int) -> None:
    path = tmp_path / "server.log"
    subprocess.run(
        [sys.executable, "-c", LOGS_AND_ENDS, path, str(max_bytes)], cwd=ROOT, timeout=PATIENCE_S, check=True
    )
    files = sorted(tmp_path.iterdir(), reverse=True)  # the oldest first
    lines = "".join(file.read_text() for file in files).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == [str(number) for number in range(LINES)]
    assert len(files) == (3 if max_bytes else 1)
