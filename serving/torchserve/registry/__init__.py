"""What TorchServe's users register and scale, start from and are allowed, without the protocols.

May import every room but the frontends; `source` is what TorchServe's flags ask for as the server's source of models.
"""
