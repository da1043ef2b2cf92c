"""The facade InferenceServer, which knows no protocol. Every frontend calls it, and models call other models through it.

May import every room except the frontends. `serving.program` makes the only InferenceServer of the process.
"""
