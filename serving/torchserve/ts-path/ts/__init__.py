"""The package that TorchServe's handlers import, with the names and behaviour that the documents of TorchServe 0.12 describe.

It imports its own modules, and torch and other packages when a handler needs them. `serving/torchserve/handlers` and handlers
call it.
"""

__version__ = "0.12.0"
