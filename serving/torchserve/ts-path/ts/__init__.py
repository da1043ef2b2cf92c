"""The package that TorchServe's handlers import: its names and what they do are those of TorchServe 0.12's documents.

It imports itself, and torch and what else a handler's own work takes when that is needed. `serving/torchserve/handlers` calls
it, and handlers.
"""

__version__ = "0.12.0"
