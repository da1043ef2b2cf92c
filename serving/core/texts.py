"""What the exception of a model says to a client: no address of an object and no path of this machine."""

import re

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4,}\b")
_PATH = re.compile(r"(?<![\w.:/~-])/(?:[\w.+@ -]*[\w.+@-]/)+([\w.+@-]*)")


def without_addresses(text: str) -> str:
    """ "<Image object at 0x7f30>" -> "<Image object>"."""
    return _ADDRESS.sub("", text)


def without_paths(text: str) -> str:
    """Of an absolute path the last name stays."""
    return _PATH.sub(r"\1", text)
