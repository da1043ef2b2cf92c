"""The types that every room may import: requests, responses, batches, tensors, datatypes, devices, errors, waiters.

It imports no other package of `serving`, and no framework.
"""
