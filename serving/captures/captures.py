"""The captures of one server: which models have some, and the thread that follows their folder and writes them.

The dashboard asks for a capture by a file in a folder, so that captures go on after a restart of the server.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from repository.core.capture_files import PACKAGE, has_package
from repository.core.captures import WANTED, Wanted, read_counts, read_wanted
from serving.captures.capture import Capture
from serving.captures.counters import Taken
from serving.captures.intake import Chooser, Intake

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the folder
WORK_S = 0.25  # between two rounds of writing
SETTLE_S = (
    5.0  # how long the thread waits until the event loop's thread gives no more requests to a capture that has ended
)
CLOSE_S = 5.0  # how long the last requests may take to be written when the server stops


class Captures:
    """choosers: by the name of the model; asked on the event loop's thread for each request of a client."""

    def __init__(self, folder: Path | None, changed: Callable[[], None]) -> None:
        """folder: of all captures, or None for a server without captures. changed: called when `choosers` has changed."""
        self.choosers: Mapping[str, Chooser] = {}
        self._changed = changed
        self._thread = None if folder is None else _Writer(folder, self._run, asyncio.get_running_loop())
        if self._thread is not None:
            self._thread.start()

    async def close(self) -> None:
        """Write the requests that wait. Those that are not written after CLOSE_S are lost, and counted by the next server."""
        if self._thread is not None:
            self._thread.stop.set()
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _run(self, captures: list[Capture]) -> None:
        intakes: dict[str, list[Intake]] = {}
        for capture in captures:
            intakes.setdefault(capture.model, []).append(capture.intake)
        self.choosers = {model: Chooser(of_model) for model, of_model in intakes.items()}
        self._changed()


class _Writer(threading.Thread):
    """Opens, writes and ends captures."""

    def __init__(self, folder: Path, run: Callable[[list[Capture]], None], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="captures", daemon=True)
        self.stop = threading.Event()
        self._folder = folder
        self._run_captures = run
        self._loop = loop
        self._open: dict[Path, Capture] = {}
        self._stamps: dict[Path, int] = {}  # of the files of captures that are open or have ended
        self._looked_s = 0.0
        self._troubles: set[str] = set()

    def run(self) -> None:
        while not self.stop.is_set():
            now = time.monotonic()
            if not self._open or now - self._looked_s >= LOOK_S:
                self._safely("following the folder of captures", self._look)
                self._looked_s = now
            for path, capture in list(self._open.items()):
                self._safely(f"writing the capture {path.name}", partial(capture.work, time.time()))
                if capture.ended:
                    self._end(path)
            self.stop.wait(WORK_S if self._open else LOOK_S)
        for capture in self._open.values():
            capture.intake.takes = False
        self._tell_loop([])
        for path, capture in self._open.items():
            self._safely(f"closing the capture {path.name}", capture.close)

    def _look(self) -> None:
        """Open new captures, and take changes of the others."""
        try:
            folders = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            folders = []
        before = list(self._open)
        for path in folders:
            try:
                stamp = (path / WANTED).stat().st_mtime_ns
            except (FileNotFoundError, NotADirectoryError):
                continue
            if self._stamps.get(path) == stamp:
                continue
            self._safely(f"opening the capture {path.name}", partial(self._take_wanted, path, stamp))
        if list(self._open) != before:
            self._tell_loop(list(self._open.values()))
        self._stamps = {path: stamp for path, stamp in self._stamps.items() if path in folders}

    def _take_wanted(self, path: Path, stamp: int) -> None:
        wanted = read_wanted(path)
        if wanted is None:
            return
        if path in self._open:
            self._open[path].intake.wanted = wanted
        elif not _ended(path) and not self._begin(path, wanted):
            return
        self._stamps[path] = stamp

    def _begin(self, path: Path, wanted: Wanted) -> bool:
        """Open a capture. Return False if it must be tried again."""
        if not has_package():
            self._report(PACKAGE)
            return False
        try:
            self._open[path] = Capture(path, wanted)
        except Taken:
            return False
        except OSError as error:
            self._report(f"the capture {path.name} cannot be opened: {error.strerror or error}")
            return False
        return True

    def _end(self, path: Path) -> None:
        capture = self._open.pop(path)
        self._tell_loop(list(self._open.values()))
        self._safely(f"ending the capture {path.name}", capture.close)

    def _tell_loop(self, captures: list[Capture]) -> None:
        """Let the event loop's thread choose requests for these captures, and wait until it gives none to any other."""
        done = threading.Event()

        def run() -> None:
            self._run_captures(captures)
            done.set()

        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop has ended
            self.stop.set()
            return
        done.wait(SETTLE_S)

    def _safely(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._report(f"{what} failed: {type(error).__name__}: {error}")

    def _report(self, trouble: str) -> None:
        """Log a trouble once."""
        if trouble not in self._troubles and len(self._troubles) < 1000:
            self._troubles.add(trouble)
            log.warning("%s", trouble)


def _ended(path: Path) -> bool:
    counts = read_counts(path)
    return counts is not None and counts["ended"] != ""
