"""Captures: requests of clients with their answers, written to the folders that `repository.core.captures` describes.

    intake.py      chooses requests and copies their tensors into a bounded queue, on the event loop's thread
    capture.py     one capture: writes what its intake has taken, on the thread of captures
    captures.py    the captures of one server, and that thread
    counters.py    what became of the chosen requests
    masks.py       what becomes of values before they are written

This package never changes an answer. May import `telemetry`, `cli` and `core`. `serving.server` gives it the requests.
"""
