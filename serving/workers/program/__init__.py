"""The program of a worker: HTTP and gRPC connections of clients, without any knowledge of models.

    worker.py         its listeners, and its connections to the core
    core_client.py    stands in for the InferenceServer: infer requests travel over the link
    http_routes.py    the routes: infer is decoded here, all else is passed on to the core as it came
    http_relay.py     requests that are passed on, and their answers
    grpc_methods.py   the methods: ModelInfer is decoded here, all others are passed on frame by frame

Imports the frontends and the link; started by `serving.workers` as a program.
"""
