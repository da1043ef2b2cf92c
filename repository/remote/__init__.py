"""Model repositories in the cloud: their addresses, and copies of their models on this machine.

May import `repository.core`. The server's `repositories` call it; fsspec and the stores' own packages are imported when an
address asks for them.
"""
