"""Measures the time of one request: microseconds and calls by stage, on the event loop's thread of a real server.

    python -m benchmarks.stages                               # prints the table
    python -m benchmarks.stages --page docs/performance.md    # writes it into the page

| module | does |
| --- | --- |
| `profiled_server` | the server, which samples its own event loop, or counts its calls, between two signals |
| `table` | turns samples into a table |
"""
