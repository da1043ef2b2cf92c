"""The link between the core and a worker: messages of many requests, tensors in shared memory, and a page of shared numbers.

Both ends run the same Python and the same source, and trust each other. May import core, cli, resources and telemetry.
`serving.workers` is the core's end, and `serving.workers.program` the worker's end.
"""
