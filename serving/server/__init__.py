"""The server without its protocols: the facade that every frontend calls, and that models use to call other models.

May import every room except the frontends. `serving.program` makes the only InferenceServer of the process.
"""
