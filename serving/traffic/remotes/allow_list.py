"""Which other servers this one may call for a rollout, by --traffic-remotes, and the headers that each of them is sent.

{"http://fastapi:8080": {}, "https://triton.internal:8443/team": {"headers": {"Authorization": "Bearer ..."}, "ca": "ca.pem"}}

A configuration names a URL, and who may write a configuration need not be who may reach the network of this machine: without
the file nothing is called. Scheme, host and port must be equal, and the path must lie below the listed one. Headers are
secrets: they are in that file alone, are sent to that server alone, and no message, log or `repr` shows them.
"""

import json
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from serving.core.errors import ServingError, invalid

MAX_BYTES = 1 << 20  # of the file
_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"[\x21-\x5b\x5d-\x7e]{1,2000}")  # printable ASCII without spaces and the backslash
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})|\[[0-9A-Fa-f:.]{2,45}\]")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")  # RFC 9110, section 5.6.2
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]{0,8000}")
# What the client says itself about each request.
_OURS = frozenset(
    (
        *("host", "connection", "content-length", "transfer-encoding", "content-encoding"),
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
        """Read a URL. INVALID_ARG for what is none of http or https, or may mean another server than it seems to."""
        if not isinstance(url, str) or not _URL.fullmatch(url):
            raise invalid(
                "expected the url of another server as http://host:port or https://host:port, with a path or without"
            )
        if "@" in url:
            raise invalid(
                "the url of another server may hold no user or password: --traffic-remotes has headers for that"
            )
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise invalid(f"'{url}' is no url of a server: expected http://host:port") from None
        host = parts.netloc.rpartition(":")[0] if port is not None else parts.netloc.removesuffix(":")
        if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or port == 0:
            raise invalid(f"'{url}' is no url of a server: expected http://host:port or https://host:port")
        if "?" in url or "#" in url:
            raise invalid(f"'{url}': the url of another server may have no '?' and no '#'")
        path = parts.path.rstrip("/")
        segments = path.split("/")[1:]
        if "%" in path or any(one in ("", ".", "..") for one in segments):
            raise invalid(f"'{url}': the path may have no '%', no empty part, no '.' and no '..'")
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

    def lies_below(self, listed: "Address") -> bool:
        """Return whether what is listed covers this address."""
        same = self[:3] == listed[:3]
        return same and (self.path == listed.path or self.path.startswith(f"{listed.path}/"))


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """How one server may be called. ca: the certificates that its own is checked against, "" for those of this machine."""

    address: Address
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca: str = ""

    def tls_context(self) -> ssl.SSLContext | None:
        """Return how TLS is spoken to it; None where it is not. INVALID_ARG for a file of certificates that cannot be read."""
        if not self.address.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca or None)
        except OSError:  # ssl.SSLError too
            raise invalid(
                f"--traffic-remotes: the 'ca' of {self.address.origin} cannot be read as certificates"
            ) from None

    def certificates(self) -> bytes | None:
        """Return the content of `ca`; None without one. INVALID_ARG where it cannot be read."""
        try:
            return Path(self.ca).read_bytes() if self.ca else None
        except OSError:
            raise invalid(
                f"--traffic-remotes: the 'ca' of {self.address.origin} cannot be read as certificates"
            ) from None


class RemoteAllowList:
    """The servers in the file, which is read anew each time a policy with another server is taken."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def of(self, url: str) -> RemoteAccess:
        """Return how the server of a URL may be called. INVALID_ARG where it may not."""
        address = Address.of(url)
        if self._path is None:
            raise invalid(
                f"'{address}' is another server, and this one may call none: start it with --traffic-remotes=FILE, "
                f'a JSON file with {{"{address.origin}": {{}}}}'
            )
        found = [one for one in read_file(self._path) if address.lies_below(one.address)]
        if not found:
            raise invalid(
                f"'{address}' is not listed in --traffic-remotes: add \"{address.origin}\" to that file to have it called"
            )
        listed = max(found, key=lambda one: len(one.address.path))
        return RemoteAccess(address, listed.headers, listed.ca)


def read_file(path: Path) -> list[RemoteAccess]:
    """Read the file. INVALID_ARG, without anything of its content but the addresses, for what is wrong with it."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        rows = json.loads(content) if len(content) <= MAX_BYTES else None
    except OSError as error:
        raise invalid(f"the file of --traffic-remotes cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, dict):
        raise invalid('the file of --traffic-remotes is not understood: expected {"http://host:port": {"headers": {}}}')
    return [_row(url, row, path.parent) for url, row in rows.items()]


def _row(url: str, row: object, folder: Path) -> RemoteAccess:
    try:
        address = Address.of(url)
    except ServingError as error:
        raise invalid(f"--traffic-remotes: {error.message}") from None
    if not isinstance(row, dict) or row.keys() - {"headers", "ca"}:
        raise invalid(f"--traffic-remotes: expected an object with 'headers' and 'ca', or {{}}, for {address}")
    headers, ca = row.get("headers", {}), row.get("ca", "")
    if not isinstance(headers, dict) or not isinstance(ca, str):
        raise invalid(f"--traffic-remotes: expected 'headers' of {address} as an object and 'ca' as the name of a file")
    for name, value in headers.items():
        if (
            not _HEADER.fullmatch(name)
            or name.lower() in _OURS
            or not isinstance(value, str)
            or not _VALUE.fullmatch(value)
        ):
            raise invalid(f"--traffic-remotes: a header of {address} has a name or a value that cannot be sent")
    return RemoteAccess(address, tuple(headers.items()), str(folder / ca) if ca else "")
