"""What the servers did: their live feed as differences, live charts, and history in merging histograms, with pages and REST.
It imports `servers` and what is below. `watch` writes history; the pages of models and the overview read it."""
