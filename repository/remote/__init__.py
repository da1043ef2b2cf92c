"""Model repositories in the cloud: their addresses and credentials (`address`), local copies of their models
(`repository`), made of content that all servers of a machine share (`content_cache`), and the layout with `pointers`.

It may import `repository.core`. The server's `repositories` call this package. fsspec, and the package for a kind of store, are
imported when an address first needs them.
"""
