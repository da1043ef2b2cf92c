"""`--frontend-workers`: worker processes that speak HTTP and gRPC for the core, which is the process that runs models.

    pool.py                  starts, watches, restarts and drains all workers
    listening.py             the listening sockets of the workers
    worker_process.py        the process of one worker
    worker_link.py           the core's end of the link: infer requests of one worker and their answers, many in a message
    internal_connections.py  the core's frontends for requests that a worker does not decode

Imports everything below it; called by the program (`serving.program`).
"""
