"""TorchServe's model archives: each instance runs the archive's handler in a separate process.

`backend.py` unpacks an archive and runs its handler, `settings.py` completes a configuration from the archive. This package may
import `backends.base`, `backends.channel`, `backends.child` and `backends.environments`. The code of the child process is in
`serving/torchserve/handlers`.
"""
