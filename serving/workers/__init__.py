"""`--frontend-workers`: the core, which is the process that runs models, starts workers that speak HTTP and gRPC for it.

    pool.py                  starts, watches, restarts and drains all workers
    listening.py             the listening sockets of the workers
    worker_process.py        the process of one worker
    worker_link.py           the infer requests of one worker and their answers, many in a message
    internal_connections.py  requests that a worker does not decode, answered by the core's frontends

Imports everything below it; called by the program (`serving.program`).
"""
