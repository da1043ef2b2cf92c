"""Runs a handler of TorchServe's: its archive is unpacked already, its requests become the list that `handle` is given.

The package `ts` that handlers import lies beside it, in `ts-path/ts`. It may import that and what `child_program` may.
"""
