"""Registered models and workflows, their archives, snapshots and tokens, without the protocols.

May import every room but the frontends; with TorchServe's flags, `source` is the server's source of models.
"""
