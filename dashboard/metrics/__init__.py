"""What the servers did: their live feed as differences, live charts, and history in merging histograms, with pages and REST.
It imports `servers` and what is below. `watch` writes history; the pages of models and the overview read it.

feed       the live feed: cumulative counters -> what happened between two events
usage      what a model did in one span: sums and histograms that merge
live       one subscription to each server's feed, shared by the WebSockets (consumers)
samples    how a span is stored, and for how long; services writes and rolls up, selectors reads for charts
recent     the figures of lists: now, and the last quarter of an hour
"""
