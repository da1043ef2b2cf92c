"""The server's side of child processes that run models: Python models, or any backend with `slipway.isolation: process`.
`supervisor` restarts the process, `instance` sends it batches, `results` reads its answers, `calls` serves its link.

It imports serving.core, serving.resources, serving.backends.base, serving.backends.channel and serving.backends.environments.
It starts serving.child_program, the program of the process, by path. The Python and TensorFlow backends and the table of
backends use it.
"""
