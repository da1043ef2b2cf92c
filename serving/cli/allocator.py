"""What the C library's allocator is told when the server starts."""

import ctypes

_M_ARENA_MAX = -8  # of glibc's malloc.h
ARENAS = 2


def bound_arenas() -> None:
    """Let all threads share two heaps. By default glibc gives nearly every thread one of its own: instances come and go with
    their models, and what they leave behind in each heap is never whole pages. Elsewhere than with glibc this does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
