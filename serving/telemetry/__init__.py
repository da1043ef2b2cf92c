"""Statistics of each model version, the request log, traces and the server's log. Nothing in this package changes an answer.

It may import `resources`, `cli` and `core`. Models update the counters, `serving.server` adds the observers, and the frontends
render the figures.
"""
