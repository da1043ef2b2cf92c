"""The programs of the peers: each serves the same ONNX file in a separate environment, and imports nothing of Slipway.

`MODEL`, `PORT` and `WORKERS` are environment variables; benchmarks/servers/commands.py starts the programs.
"""
