"""TorchServe's model archives: each instance runs the archive's handler in a process of its own.

`backend.py` unpacks an archive and runs its handler, `settings.py` completes a configuration from the archive. May import
`backends.base`, `backends.channel`, `backends.child` and `backends.environments`. The code of the child process is in
`serving/torchserve/handlers`.
"""
