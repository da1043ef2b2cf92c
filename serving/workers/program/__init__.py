"""The program of a worker: it serves the HTTP and gRPC connections of clients, and knows nothing of models.

    worker.py         the listeners of the worker, and its connections to the core
    core_client.py    stands in for the InferenceServer, and sends infer requests over the link
    http_routes.py    the HTTP routes: infer requests are decoded here, all others are passed on to the core unchanged
    http_relay.py     passes HTTP requests on to the core, and their answers back
    grpc_methods.py   the gRPC methods: ModelInfer is decoded here, all other calls are passed on frame by frame

Imports the frontends and the link; started by `serving.workers` as a program.
"""
