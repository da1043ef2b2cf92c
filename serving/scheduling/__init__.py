"""Schedulers choose when, where and in which batch a request runs: dynamic batcher, sequence batcher, ensembles.

This package may import `execution`, `telemetry`, `resources` and `core`. A model makes its scheduler and submits
checked requests to it.
"""
