"""Names of archives: the files of a store that may be archives, the file that a url means, and default names of models."""

import re
import urllib.parse
from pathlib import Path

_ADDRESS = re.compile(r"(?:https?|file|s3|gs|as)://.*", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"//[^/@]*@")


def archives_in(folder: Path) -> list[str]:
    """Return the sorted names of the files and folders of a store that may be archives."""
    found = [one for one in sorted(folder.iterdir()) if not one.name.startswith(".")]
    return [one.name for one in found if one.is_dir() or one.name.endswith((".mar", ".model", ".tar.gz", ".tgz"))]


def is_address(url: str) -> bool:
    """Return whether a url is an address, not the name of a file in the store."""
    return _ADDRESS.fullmatch(url) is not None


def file_name(url: str) -> str:
    """Return the name that the file of a url has, or would have, in the store; "" for a malformed address."""
    try:
        path = urllib.parse.urlsplit(url).path if is_address(url) else url
    except ValueError:
        return ""
    return path.replace("\\", "/").rpartition("/")[2]


def hide_secrets(url: str) -> str:
    """Return the part of a url that a log may show: an address may carry a password, or a signature in its query."""
    return _USER.sub("//", url.partition("?")[0]) if is_address(url) else url


def default_name(url: str) -> str:
    """Return the name that TorchServe gives to a model if neither the request nor the manifest names the model."""
    name = url.rpartition("/")[2]
    if ".model" in url or ".mar" in url:
        name = name.rpartition(".")[0]
    return re.sub(r"\W|^_", "_", name, flags=re.ASCII)


def named(text: str) -> tuple[str, str]:
    """Return name and url of [name=]url; the url may itself contain a "="."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "://" not in name else ("", text)
