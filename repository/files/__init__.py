"""A model's files: unpacking archives, staging and publishing versions, finding code and changes by hand.

May import `repository.config` and `repository.core`. The dashboard calls this package for uploads, publications and its watch
on the repository. The server never writes to the repository.
"""
