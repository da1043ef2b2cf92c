"""What the protocol's extensions do to tensors: classification, shared memory, ragged batches.

May import `core`. Frontends resolve what the parameters of inputs and outputs ask for, models apply it to their answers, and
backends gather ragged batches.
"""
