"""Metrics of handlers: counters, gauges and histograms with dimensions. It imports only its own modules.

`serving/torchserve/handlers/metrics.py` sends their values to the server.
"""
