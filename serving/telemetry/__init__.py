"""What the server tells of its work: each version's statistics, the request log, traces and the log itself.

May import `resources`, `cli` and `core`; nothing here changes what is answered. Models count, `serving.server` lets requests be
observed, and the frontends render it.
"""
