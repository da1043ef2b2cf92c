"""Model repositories in the cloud: their addresses and credentials (`address`), and local copies of their models
(`repository`).

It may import `repository.core`. The server's `repositories` call this package. fsspec, and the package for a kind of store, are
imported when an address first needs them.
"""
