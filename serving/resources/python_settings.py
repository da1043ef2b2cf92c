"""How Python runs in the server's processes: how long a thread keeps the interpreter, how often garbage is looked for."""

import gc
import sys


def set_up() -> None:
    """Choose for a server: many small pieces of work on the loop, and threads that compute."""
    # A thread in Python code holds the interpreter for at most this long when the loop has work; 5 ms is the default.
    sys.setswitchinterval(0.0005)
    # A request leaves no reference cycles, so the collector has little to find: let it look less often.
    gc.set_threshold(20_000, 20, 20)
