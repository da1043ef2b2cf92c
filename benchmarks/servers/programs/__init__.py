"""The programs of the peers: each serves the same ONNX file in an environment of its own, and imports nothing of Slipway.

`MODEL`, `PORT` and `WORKERS` come from the environment; benchmarks/servers/commands.py starts them.
"""
