"""The package that TorchServe's handlers import, with the names and behaviour of TorchServe 0.12's documents.

It imports itself, and torch and other packages when a handler needs them. `serving/torchserve/handlers` and handlers call it.
"""

__version__ = "0.12.0"
