"""A model's files: archives unpacked, versions staged and published whole, what can run code, what was changed by hand.

May import `repository.config` and `repository.core`. The dashboard's uploads, publications and watch call it; the server never
writes to the repository.
"""
