"""The other servers that this server may call for a rollout: the file --traffic-remotes lists them.

A policy names a URL, but people who may write policies need not have access to this machine's network. So without the file no
server is called, and each listed server gets only its listed headers. Format: repository.config.listed_servers.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from repository.config.listed_servers import Address, ListedServer, listed_for, read_listed
from repository.core.errors import RepositoryError
from serving.core.errors import ServingError, invalid


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """How one server may be called. Two objects are equal if all is equal, including the content of the files.

    ca, cert, key: the content of the server's TLS files; b"" for no file. tls: the TLS context made from them, or None for a
    server without TLS."""

    address: Address
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    ca: bytes = field(default=b"", repr=False)
    cert: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, address: Address, listed: ListedServer) -> "RemoteAccess":
        """Read the files; call this on a worker thread. Raises INVALID_ARG if a file is missing or has the wrong content."""
        ca, cert, key = (_content(listed, name) for name in ("ca", "cert", "key"))
        return cls(address, listed.headers, ca, cert, key, _tls_context(listed) if address.tls else None)


def _content(listed: ListedServer, name: str) -> bytes:
    path = getattr(listed, name)
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        raise _unreadable(listed, f"the '{name}'") from None


def _tls_context(listed: ListedServer) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=listed.ca or None)
    except OSError:  # ssl.SSLError too
        raise _unreadable(listed, "the 'ca'") from None
    try:
        if listed.cert:
            context.load_cert_chain(
                listed.cert, listed.key, password=bytes
            )  # an empty password, so that nobody is prompted for one
    except (OSError, ValueError):
        raise _unreadable(listed, "'cert' and 'key'") from None
    return context


def _unreadable(listed: ListedServer, what: str) -> ServingError:
    return invalid(f"--traffic-remotes: {what} of {listed.address.origin} cannot be read as PEM files for TLS")


class RemoteAllowList:
    """The servers in the file. The file is read again each time a policy with another server takes effect."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def of(self, url: str) -> RemoteAccess:
        """Return how the server of a URL may be called. Raises INVALID_ARG if it may not be called."""
        try:
            address = Address.of(url)
            if self._path is None:
                raise RepositoryError(
                    f"'{address}' is another server, and this one may call none: start it with --traffic-remotes=FILE, "
                    f'a JSON file with {{"{address.origin}": {{}}}}'
                )
            listed = listed_for(address, read_listed(self._path).values())
        except RepositoryError as error:
            raise invalid(error.message) from None
        if listed is None:
            raise invalid(
                f"'{address}' is not listed in --traffic-remotes: add \"{address.origin}\" to that file to allow it"
            )
        return RemoteAccess.of(address, listed)
