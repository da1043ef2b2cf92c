"""The managed model repository on disk, and all other rules that the dashboard and the inference server share.

It may import neither the dashboard, the server, Django nor a framework. The dashboard writes the repository, and the server
reads it.
"""
