"""A model's files: unpacking archives, staging and publishing versions, finding code and changes by hand.

It may import `repository.config` and `repository.core`. The dashboard calls this package for uploads, for publications, and to
watch the repository. The server never writes to the repository.
"""
