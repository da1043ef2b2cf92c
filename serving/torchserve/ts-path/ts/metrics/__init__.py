"""Metrics of handlers: counters, gauges and histograms with dimensions. It imports only itself.

`serving/torchserve/handlers/metrics.py` sends their values to the server.
"""
