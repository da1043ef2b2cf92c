"""Metrics of handlers: counters, gauges and histograms with dimensions. The package imports only its own modules.

`serving/torchserve/handlers/metrics.py` sends their values to the server.
"""
