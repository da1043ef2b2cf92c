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
from serving.captures.capture import Capture, CaptureObserver
from serving.captures.counters import Taken
from serving.core.in_flight import InFlightRequest

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the folder
WORK_S = 0.25  # between two rounds of writing
CLOSE_S = 5.0  # how long the last requests may take to be written when the server stops


class Captures:
    """`observe` is called on the event loop's thread for each request of a client, while `running` is not empty."""

    def __init__(self, folder: Path | None, changed: Callable[[], None]) -> None:
        """folder: of all captures, or None for a server without captures. changed: called when `running` has changed."""
        self.running: Mapping[str, list[Capture]] = {}  # by the name of the model
        self._changed = changed
        self._thread = None if folder is None else _Writer(folder, self._run, asyncio.get_running_loop())
        if self._thread is not None:
            self._thread.start()

    def observe(self, request: InFlightRequest) -> None:
        """Follow a request that a capture chooses."""
        captures = self.running.get(request.asked.model_name)
        if captures is not None:
            chosen = [capture for capture in captures if capture.chooses()]
            if chosen:
                request.observe(CaptureObserver(chosen))

    async def close(self) -> None:
        """Write the requests that wait. Those that are not written after CLOSE_S are lost, and counted by the next server."""
        if self._thread is not None:
            self._thread.stop.set()
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _run(self, captures: list[Capture]) -> None:
        running: dict[str, list[Capture]] = {}
        for capture in captures:
            running.setdefault(capture.model, []).append(capture)
        self.running = running
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
            self._tell_loop()
        self._stamps = {path: stamp for path, stamp in self._stamps.items() if path in folders}

    def _take_wanted(self, path: Path, stamp: int) -> None:
        wanted = read_wanted(path)
        if wanted is None:
            return
        if path in self._open:
            self._open[path].wanted = wanted
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
        self._tell_loop()
        self._safely(f"ending the capture {path.name}", capture.close)

    def _tell_loop(self) -> None:
        """Let the event loop's thread choose requests for the captures that are open."""
        try:
            self._loop.call_soon_threadsafe(self._run_captures, list(self._open.values()))
        except RuntimeError:  # the loop has ended
            self.stop.set()

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
