"""What TorchServe's users register and scale, start from and are allowed, without the protocols.

May import every room but the frontends; `serving.program` makes the one TorchServeSide where TorchServe's listeners are wanted.
"""
