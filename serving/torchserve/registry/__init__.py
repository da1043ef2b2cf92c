"""Registered models and workflows, their archives, snapshots and tokens, without the protocols.

This package may import every package except the frontends. With TorchServe's flags, `source` is the server's source of models.
"""
