"""Checks on a thread whether another program has changed a file, because a disk may be slow or hang."""

import threading
import time
import weakref
from collections.abc import Callable

from serving.core.errors import safely


def follow(name: str, refresh: Callable[[], None], every_s: float) -> None:
    """Every `every_s` seconds, call a method that checks a file, on a separate thread, until the method's object is deleted."""
    method = weakref.WeakMethod(refresh)
    threading.Thread(target=_run, args=(name, method, every_s), name=f"follow-{name}", daemon=True).start()


def _run(name: str, method: "weakref.WeakMethod[Callable[[], None]]", every_s: float) -> None:
    while True:
        time.sleep(every_s)
        refresh = method()
        if refresh is None:
            return
        safely(f"looking at the {name} file", refresh)
        del refresh
