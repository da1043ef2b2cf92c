"""A model's files: unpacking archives, staging and publishing versions, finding code and changes by hand.

May import `repository.config` and `repository.core`. The dashboard's uploads, publications and watch call it; the server never
writes to the repository.
"""
