"""When, where and with which others a request runs: the dynamic batcher, the sequence batcher, ensembles.

May import `execution`, `telemetry`, `resources` and `core`. A model makes its scheduler and submits checked requests to it.
"""
