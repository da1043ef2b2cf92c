"""Runs a TorchServe handler in its child process: its archive is unpacked already, requests become the list for `handle`.

The package `ts` for handlers is in `ts-path/ts`. It may import that, and all that `child_program` may.
"""
