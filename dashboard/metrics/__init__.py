"""Metrics of servers: the live feed, live charts, and history in mergeable histograms, with pages and REST. The room imports
`servers` and the rooms below. `watch` writes history; the pages of models and the overview read it.

feed       the live feed: cumulative counters -> differences between two events
usage      the figures of a model in one span: sums and histograms that merge
exposition text for Prometheus: `web_process` for GET /api/v1/web-metrics, `backlog` for what all processes do
points     the messages of the live feed to browsers, of one server or of several together
live       one subscription to each server's feed, shared by the WebSockets (consumers), and their sums
samples    the stored form of a span; `services` stores and merges it, `selectors` reads it for charts
marks      the marks on charts: a line in a table for each kind
noted      the slowest and the failed requests, and failures by cause
server_loads  the load of each server beside the others
recent     the figures in lists of models: now, and in the last 15 minutes
"""
