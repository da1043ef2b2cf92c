"""TLS for a frontend: the server's certificate and, for mutual TLS, the CA that signs clients' certificates."""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from serving.cli.options import Options
from serving.cli.pem import UnusablePem, expiry, load_chain
from serving.core.errors import invalid

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 10.0
SHUTDOWN_TIMEOUT_S = 3600.0  # long, because the frontends themselves disconnect clients that read too slowly


class ListenerOptions(TypedDict, total=False):
    """Keyword arguments of a loop's `create_server`."""

    ssl: ssl.SSLContext
    ssl_handshake_timeout: float
    ssl_shutdown_timeout: float


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The values of the TLS flags of one protocol. `mutual` enables TLS without `use_ssl`, too, as in Triton."""

    protocol: str
    use_ssl: bool
    mutual: bool
    cert: Path | None
    key: Path | None
    root: Path | None

    @classmethod
    def of_grpc(cls, options: Options) -> "TlsFiles":
        return cls(
            "grpc",
            options.grpc_use_ssl,
            options.grpc_use_ssl_mutual,
            options.grpc_server_cert,
            options.grpc_server_key,
            options.grpc_root_cert,
        )

    @classmethod
    def of_http(cls, options: Options) -> "TlsFiles":
        return cls(
            "http",
            options.http_use_ssl,
            options.http_use_ssl_mutual,
            options.http_server_cert,
            options.http_server_key,
            options.http_root_cert,
        )

    def flag(self, what: str) -> str:
        """Return the full name of a flag: "server-cert" -> "--http-server-cert"."""
        return f"--{self.protocol}-{what}"


def server_context(files: TlsFiles, application: str) -> ssl.SSLContext | None:
    """Return the context of a listener, or None if TLS is off. application: the ALPN name.

    Raises INVALID_ARG if a file is missing or cannot be used.
    """
    if not files.use_ssl and not files.mutual:
        return None
    if files.cert is None or files.key is None:
        raise invalid(
            f"--{files.protocol}-use-ssl needs --{files.protocol}-server-cert and --{files.protocol}-server-key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([application])
    try:
        load_chain(context, files.cert, files.key)
        if late := expiry(files.cert):
            log.warning("%s: %s", files.flag("server-cert"), late)
    except UnusablePem as error:
        raise invalid(f"{files.flag('server-cert')} cannot be used: {error}") from None
    if files.mutual:
        if files.root is None:
            raise invalid(f"--{files.protocol}-use-ssl-mutual needs --{files.protocol}-root-cert")
        _load(files, "root-cert", lambda: context.load_verify_locations(files.root))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(files: TlsFiles, what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except OSError as error:  # ssl.SSLError too
        reason = error.strerror or type(error).__name__
        raise invalid(f"{files.flag(what)} cannot be used: {reason}") from None


def listener_options(context: ssl.SSLContext | None) -> ListenerOptions:
    """Return the arguments of a loop's `create_server` for this context; an empty dict if it is None."""
    if context is None:
        return {}
    return {
        "ssl": context,
        "ssl_handshake_timeout": HANDSHAKE_TIMEOUT_S,
        "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
    }
