"""The protocol's extensions for tensors: classification, shared memory, ragged batches.

This package may import `core`. Frontends read the parameters of inputs and outputs, models apply output parameters, and
backends gather ragged batches.
"""
