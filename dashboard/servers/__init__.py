"""Inference servers: their HTTP client, rows and states, restarts and logs, with pages and REST. The room imports `web` and the
rooms below. Metrics, catalog, playground, `watch` and `up` call it."""
