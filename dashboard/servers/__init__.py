"""Inference servers: the client that alone speaks to them, their rows and states, restarts, their logs, with pages and REST.
It imports `web` and what is below. Metrics, catalog, playground, `watch` and `up` ask or write here."""
