"""The program of a worker: HTTP and gRPC connections of clients, without any knowledge of models.

    core_client.py   stands in for the InferenceServer: infer requests travel over the link
    http_routes.py   the routes: infer is decoded here, all else is passed on to the core as it came

Imports the frontends and the link; started by `serving.workers` as a program.
"""
