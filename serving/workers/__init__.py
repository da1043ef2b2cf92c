"""`--frontend-workers`: the core's side of the processes that speak HTTP and gRPC for it.

    pool.py                  the processes: started, watched, started again, drained
    listening.py             the sockets that they listen on
    worker_process.py        one process
    worker_link.py           its infer requests and their answers, many in a message
    internal_connections.py  requests that a worker does not decode, answered by the core's frontends

Imports everything below it; called by the program (`serving.program`).
"""
