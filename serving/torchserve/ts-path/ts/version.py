"""The version of the TorchServe whose handlers run here."""

from . import __version__

__all__ = ["__version__"]
