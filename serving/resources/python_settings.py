"""Sets how long a thread of the server keeps Python's interpreter lock (GIL), and how often garbage is collected."""

import gc
import sys


def set_up() -> None:
    """Apply both settings for a server, whose loop does many small pieces of work while other threads compute."""
    # A thread in Python code holds the GIL for at most this long when the loop has work. The default is 5 ms.
    sys.setswitchinterval(0.0005)
    # A request leaves no reference cycles, so the collector may look for them less often.
    gc.set_threshold(20_000, 20, 20)
