"""The managed model repository on disk, and all other rules that the dashboard and the inference server share.

May import neither the dashboard nor the server, no Django and no framework. The dashboard writes the repository, the server
reads it.
"""
