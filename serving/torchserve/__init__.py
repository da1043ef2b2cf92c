"""TorchServe's side of the server, without its protocols: what its users register and scale, start from and are allowed.

May import every room but the frontends. `serving.program` makes the one TorchServeSide where TorchServe's listeners are wanted.
`python -m serving.torchserve` takes TorchServe's own command line.
"""
