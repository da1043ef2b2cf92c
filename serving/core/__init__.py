"""The types that every room may import: requests, responses, batches, tensors, datatypes, devices, errors, waiters.

It imports nothing of `serving` but itself, and no framework. Every other room calls it.
"""
