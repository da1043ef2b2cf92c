"""The load generator: it sends requests in a closed or an open loop, and measures the latencies of their answers. The room
imports nothing else of the dashboard, so that `python -m dashboard.loads` runs in a separate process, without Django.
Measurements of a version and `benchmarks/` use it."""
