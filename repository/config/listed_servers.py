"""The file of --traffic-remotes: the servers that a server may call for a rollout, and the headers to send to them.

{"http://fastapi:8080": {}, "https://triton.internal:8443/team": {"headers": {"Authorization": "Bearer ..."}, "ca": "ca.pem"}}

ca           the certificates that verify the listed server, in place of those that the machine trusts
cert, key    the certificate that this server shows if the listed server asks for one (mutual TLS)

The server calls only addresses that the file lists. The dashboard uses the file to refuse other addresses in advance. Scheme,
host and port must be equal, and the path must be below the listed path. Names of files are absolute, or relative to the folder
of this file. Headers are secrets: no message, log or `repr` shows them.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from repository.core.addresses import part_problem
from repository.core.errors import RepositoryError

MAX_BYTES = 1 << 20  # the largest size of the file
_FILES = ("ca", "cert", "key")
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"[\x21-\x5b\x5d-\x7e]{1,2000}")  # printable ASCII without spaces and the backslash
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]{0,8000}")
# The headers that the HTTP client sets for each request.
_OURS = frozenset(
    (
        *("connection", "content-length", "transfer-encoding", "content-encoding"),
        *("accept-encoding", "expect"),
    )
)


class Address(NamedTuple):
    """A URL in its parts. path: without a "/" at its end; "" for the root."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, url: str) -> "Address":
        """Read a URL. Raises RepositoryError if its scheme is not http or https, or if it may mislead about its server."""
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise RepositoryError(
                "expected the url of another server as http://host:port or https://host:port, with a path or without"
            )
        if "@" in url:
            raise RepositoryError(
                "the url of another server may hold no user or password: --traffic-remotes has headers for that"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RepositoryError(f"'{url}' is no url of a server: expected http://host:port") from None
        host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.removesuffix(":")
        if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or port == 0:
            raise RepositoryError(f"'{url}' is no url of a server: expected http://host:port or https://host:port")
        if "?" in url or "#" in url:
            raise RepositoryError(f"'{url}': the url of another server may have no '?' and no '#'")
        path = parts.path.rstrip("/")
        segments = path.split("/")[1:]
        if wrong := next(filter(None, map(part_problem, segments)), ""):
            raise RepositoryError(f"'{url}': expected each part of the path to be {wrong}")
        return cls(parts.scheme, host.lower(), port or _PORTS[parts.scheme], path)

    def __str__(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def tls(self) -> bool:
        return self.scheme == "https"

    def below(self, *parts: str) -> str:
        """Return a path with these parts below this address. Raises RepositoryError if a part may lead out of it."""
        for part in parts:
            if wrong := part_problem(part):
                raise RepositoryError(f"'{part[:80]}' cannot be asked for at {self}: expected {wrong}")
        return "".join((self.path, *(f"/{quote(part, safe='')}" for part in parts)))

    def lies_below(self, listed: "Address") -> bool:
        """Return whether this listed address covers another address."""
        same = self[:3] == listed[:3]
        return same and (self.path == listed.path or self.path.startswith(f"{listed.path}/"))


@dataclass(frozen=True, slots=True)
class ListedServer:
    """One row of the file. ca, cert, key: names of files, or "". Without `ca`, the certificates of the machine are trusted."""

    address: Address
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""


def read_listed(path: Path) -> dict[str, ListedServer]:
    """Return the rows of the file, by address.

    Raises RepositoryError if the file has a mistake. The message shows nothing of its content except addresses.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        rows = json.loads(content) if len(content) <= MAX_BYTES else None
    except OSError as error:
        raise RepositoryError(f"the file of --traffic-remotes cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, dict):
        raise RepositoryError(
            'the file of --traffic-remotes is not understood: expected {"http://host:port": {"headers": {}}}'
        )
    return {url: _row(url, row, path.parent) for url, row in rows.items()}


def listed_for(address: Address, listed: Iterable[ListedServer]) -> ListedServer | None:
    """Return the row that covers an address; of several rows, the one with the longest path, or None if no row covers it."""
    found = [one for one in listed if address.lies_below(one.address)]
    return max(found, key=lambda one: len(one.address.path), default=None)


def _row(url: str, row: object, folder: Path) -> ListedServer:
    try:
        address = Address.of(url)
    except RepositoryError as error:
        raise RepositoryError(f"--traffic-remotes: {error.message}") from None
    if not isinstance(row, dict) or row.keys() - {"headers", *_FILES}:
        raise RepositoryError(
            f"--traffic-remotes: expected an object with 'headers', 'ca', 'cert' and 'key', or {{}}, for {address}"
        )
    headers, files = row.get("headers", {}), [row.get(name, "") for name in _FILES]
    if not isinstance(headers, dict) or not all(isinstance(one, str) for one in files):
        raise RepositoryError(
            f"--traffic-remotes: expected 'headers' of {address} as an object, and 'ca', 'cert' and 'key' as names of files"
        )
    if bool(row.get("cert")) != bool(row.get("key")):
        raise RepositoryError(f"--traffic-remotes: expected 'cert' and 'key' of {address} together")
    for name, value in headers.items():
        if (
            not _HEADER.fullmatch(name)
            or name.lower() in _OURS
            or not isinstance(value, str)
            or not _VALUE.fullmatch(value)
        ):
            raise RepositoryError(f"--traffic-remotes: a header of {address} has a name or a value that cannot be sent")
    return ListedServer(address, tuple(headers.items()), *(str(folder / one) if one else "" for one in files))
