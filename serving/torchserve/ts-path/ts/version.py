"""The version of TorchServe that handlers see."""

from . import __version__

__all__ = ["__version__"]
