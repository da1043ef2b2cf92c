"""Which other servers this one may call for a rollout, by --traffic-remotes.

A configuration names a URL, and who may write a configuration need not be who may reach the network of this machine: without
the file (repository.config.listed_servers) nothing is called, and what is listed is sent its own headers alone.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from repository.config.listed_servers import Address, listed_for, read_listed
from repository.core.errors import RepositoryError
from serving.core.errors import invalid


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
                f"'{address}' is not listed in --traffic-remotes: add \"{address.origin}\" to that file to have it called"
            )
        return RemoteAccess(address, listed.headers, listed.ca)
