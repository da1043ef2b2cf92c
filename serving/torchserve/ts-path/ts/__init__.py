"""The package that TorchServe's handlers import, with the names and behaviour that the documents of TorchServe 0.12 describe.

The package imports its own modules, and torch and other packages when a handler needs them. It is called by
`serving/torchserve/handlers` and by handlers.
"""

__version__ = "0.12.0"
