"""The package that TorchServe's handlers import, with the names and behaviour that the documents of TorchServe 0.12 describe.

The package imports its own modules and, when a handler needs them, torch and other packages. Handlers and
`serving/torchserve/handlers` call it.
"""

__version__ = "0.12.0"
