"""The label in the inference server's version that tells whether modules run compiled."""

_COMPILED = "+compiled"  # a local version label, as of Python packages


def with_build(version: str, compiled: bool) -> str:
    """Return the version for a server's metadata."""
    return f"{version}{_COMPILED}" if compiled else version


def is_compiled(version: str) -> bool:
    """Return whether a server of this version runs compiled modules."""
    return version.endswith(_COMPILED)
