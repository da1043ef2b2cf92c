"""TorchServe's metrics, as a page and as a file, and its logs.

`metrics` counts and `metric_values` gathers what both forms show; each log is a file that is written beside the work. May
import `registry` and the frontends of the server.
"""
