"""The program of a worker, which serves the HTTP and gRPC connections of clients, and has no models.

    worker.py         the listeners of the worker, and its connections to the core
    core_client.py    replaces the InferenceServer, and sends infer requests over the link
    http_routes.py    the HTTP routes: the worker decodes infer requests and forwards all other requests to the core
    http_relay.py     forwards HTTP requests to the core, and their answers to the clients
    grpc_methods.py   the gRPC methods: the worker decodes ModelInfer and forwards all other calls frame by frame
May import the frontends and the link. `serving.workers` starts it as a program.
"""
