"""The types that every room may import: requests, responses, batches, tensors, datatypes, devices, errors, waiters.

It imports no other room of `serving`, and no framework. Every other room uses it.
"""
