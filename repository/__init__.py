"""The managed model repository on disk, which dashboard and inference server agree on, and what else both must agree on.

May import neither of them, no Django and no framework. Both programs call it: the dashboard writes the repository, the server
reads it.
"""
