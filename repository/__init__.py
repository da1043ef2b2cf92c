"""The managed model repository on disk, and all other rules that dashboard and inference server share.

May import neither of them, no Django and no framework. The dashboard writes the repository, the server reads it.
"""
