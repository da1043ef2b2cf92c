"""The types that all packages of `serving` import: requests, responses, batches, tensors, datatypes, devices, errors, waiters.

It imports no other package of `serving`, and no framework.
"""
