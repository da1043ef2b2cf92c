"""Statistics of each model version, the request log, traces and the server's log.

This package never changes an answer. May import `resources`, `cli` and `core`. Models update the counters, `serving.server`
adds the observers, and the frontends render the figures.
"""
