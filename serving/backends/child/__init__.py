"""The server's side of child processes that run models: Python models, and any backend under `slipway.isolation: process`.
`supervisor` starts the process again, `instance` sends it batches, `results` reads its answers, `calls` serves what it asks.

It imports serving.core, serving.resources, serving.backends.base, serving.backends.channel and serving.backends.environments;
what runs in the process is serving.child_program, which it starts by path. The Python and TensorFlow backends call it, and the
table of backends.
"""
