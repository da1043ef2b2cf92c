"""Where does the time of one request go? Microseconds and calls by stage, on the event loop's thread of a real server.

    python -m benchmarks.stages                               # prints the table
    python -m benchmarks.stages --page docs/performance.md    # writes it into the page

| module | does |
| --- | --- |
| `profiled_server` | the server, which samples its own loop, or counts its calls, between two signals |
| `table` | from samples to a table |
"""
