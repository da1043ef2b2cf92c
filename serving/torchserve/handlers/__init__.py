"""Runs a TorchServe handler in its child process: the archive is already unpacked, requests become the list for `handle`.

The package `ts` for handlers is in `ts-path/ts`. This room may import `ts`, and everything that `child_program` may import.
"""
