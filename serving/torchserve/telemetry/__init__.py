"""TorchServe's metrics, as a page and as a file, and TorchServe's logs.

`metrics` counts, and `metric_values` reads the values for both forms. Each log is a file that is written in the background.
This package may import `registry` and the frontends of the server.
"""
