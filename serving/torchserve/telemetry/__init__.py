"""TorchServe's metrics, as a page and as a file, and TorchServe's logs.

`metrics` counts, `metric_values` reads the values for both forms, and each log is a file that is written in the background. May
import `registry` and the frontends of the server.
"""
