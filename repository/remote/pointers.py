"""The layout of a repository in the cloud whose models become visible at once: content by its hash, and one pointer per model.

<root>/slipway.json           {"format": 1} marks a repository with this layout
<root>/objects/<SHA-256>      content
<root>/models/<model>.json    the pointer: {"format": 1, "model": <model>, "files": {<path>: {"sha256": ..., "size": <bytes>}},
                              "versions": [<number>, ...]}, which also names versions that have no file, such as an ensemble's
"""

import json
import re

from repository.core import layout
from repository.core.errors import InvalidConfig
from repository.remote.content_cache import SHA256

MARKER = "slipway.json"
OBJECTS, MODELS = "objects", "models"
SUFFIX = ".json"
FORMAT = 1
MAX_BYTES = 16 << 20  # of a marker or pointer

_HASH = re.compile(r"[0-9a-f]{64}")


def check_format(content: bytes, what: str) -> dict[str, object]:
    """Return a marker or pointer as a dict. what: its name in errors. Raises InvalidConfig for another format."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or nested too deep
        document = None
    if not isinstance(document, dict) or "format" not in document:
        raise InvalidConfig(f"{what} is no JSON object with a format")
    if document["format"] != FORMAT:
        raise InvalidConfig(f"{what} has format {str(document['format'])[:20]}, and this release reads format {FORMAT}")
    return document


def read_pointer(content: bytes, name: str) -> tuple[tuple[str, int, str], ...]:
    """Return the files of a model: path, size, and SHA256 followed by the hash. A version without files is "<version>/", 0, "".

    Raises InvalidConfig, or UnsafePath for a path that leads out of the model.
    """
    what = f"the pointer of model '{name}'"
    document = check_format(content, what)
    files = document.get("files")
    if document.get("model") != name or not isinstance(files, dict):
        raise InvalidConfig(f"{what} is that of another model, or has no files")
    rows = []
    for path, entry in files.items():
        try:
            layout.relative_path(path)
        except UnicodeEncodeError:
            raise InvalidConfig(f"{what} has a path that is no valid UTF-8") from None
        sha256, size = (entry.get("sha256"), entry.get("size")) if isinstance(entry, dict) else (None, None)
        if not isinstance(sha256, str) or not _HASH.fullmatch(sha256) or type(size) is not int or size < 0:
            raise InvalidConfig(f"{what} has no valid hash and size for '{path[:80]}'")
        rows.append((path, size, SHA256 + sha256))
    versions = document.get("versions", [])
    if not isinstance(versions, list) or any(type(number) is not int or number < 1 for number in versions):
        raise InvalidConfig(f"{what} has versions that are no numbers")
    with_files = {path.partition("/")[0] for path in files}
    rows += [(f"{number}/", 0, "") for number in versions if str(number) not in with_files]
    return tuple(sorted(rows))
