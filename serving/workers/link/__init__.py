"""The link between the core and a worker: messages of many requests, tensors in shared memory, the page that all processes see.

Both ends are processes of the same Python and the same source, and trust each other. Imports core, cli, resources and
telemetry; called by `serving.workers` (the core's end) and `serving.workers.program` (a worker's).
"""
