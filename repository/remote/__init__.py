"""Model repositories in the cloud: their addresses with the credentials for them (`address`), and copies of their models on
this machine (`repository`).

May import `repository.core`. The server's `repositories` call it; fsspec and the stores' own packages are imported when an
address asks for them.
"""
