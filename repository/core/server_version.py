"""What the inference server's version says beside its number: whether the modules of a request's path run compiled."""

_COMPILED = "+compiled"  # a local version label, as packages of Python have them


def with_build(version: str, compiled: bool) -> str:
    """Return the version that a server's metadata has."""
    return f"{version}{_COMPILED}" if compiled else version


def is_compiled(version: str) -> bool:
    """Whether a server of this version runs compiled modules."""
    return version.endswith(_COMPILED)
