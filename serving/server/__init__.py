"""The server without its protocols: the facade that every frontend calls, and by which models call other models.

May import every room but the frontends. `serving.program` makes the one InferenceServer of the program.
"""
