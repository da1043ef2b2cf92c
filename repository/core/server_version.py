"""The version of both programs, and the label in the inference server's version that shows whether its modules are compiled."""

VERSION = "0.1.0"  # as in pyproject.toml

_COMPILED = "+compiled"  # a local version label, as in versions of Python packages


def with_build(version: str, compiled: bool) -> str:
    """Return the version that a server's metadata show."""
    return f"{version}{_COMPILED}" if compiled else version


def release_of(version: str) -> str:
    """Return the release that a server's metadata show, without the label."""
    return version.removesuffix(_COMPILED)


def is_compiled(version: str) -> bool:
    """Return whether a server with this version runs compiled modules."""
    return version.endswith(_COMPILED)
