"""TorchServe's model archives: each instance runs the archive's handler in a process of its own.

`backend.py` unpacks an archive and has its handler run, `settings.py` completes a configuration from what it says. It may
import `backends.base`, `backends.channel`, `backends.child` and `backends.environments`; the child's side is
`serving/torchserve/handlers`.
"""
