"""What handlers measure: counters, gauges and histograms with dimensions. It imports only itself.

`child_program/torchserve/metrics.py` takes what is measured to the server.
"""
