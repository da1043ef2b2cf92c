"""The protocol's extensions for tensors: classification, shared memory, ragged batches.

May import `core`. Frontends read the parameters of inputs and outputs, models apply those of outputs to their answers, and
backends gather ragged batches.
"""
