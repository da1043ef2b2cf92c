"""What handlers measure: counters, gauges and histograms with dimensions. It imports only itself.

`serving/torchserve/handlers/metrics.py` takes what is measured to the server.
"""
