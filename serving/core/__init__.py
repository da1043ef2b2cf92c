"""What every room may import: requests, responses and batches, tensors and datatypes, devices, errors, waiters.

It imports nothing of `serving` but itself, and no framework. Every other room calls it.
"""
