"""The protocol-neutral facade InferenceServer, which every frontend calls, and through which models call other models.

May import every room except the frontends. `serving.program` makes the only InferenceServer of the process.
"""
