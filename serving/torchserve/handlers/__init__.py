"""Runs a TorchServe handler in its child process, from an archive that is already unpacked.

The package `ts` for handlers is in `ts-path/ts`. This package may import `ts`, and everything that `child_program` may import.
"""
