"""The records of the server's work: each version's statistics, the request log, traces and the log itself.

May import `resources`, `cli` and `core`; nothing here changes an answer. Models count, `serving.server` adds the observers, and
the frontends render the figures.
"""
