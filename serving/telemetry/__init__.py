"""The records of the server's work: each version's statistics, the request log, traces and the log itself.

This package may import `resources`, `cli` and `core`, and changes no answer. Models update the counters, `serving.server` adds
the observers, and the frontends render the figures.
"""
