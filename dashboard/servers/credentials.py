"""What the dashboard shows to an inference server, and asks of it: the control key, client certificates, and whom it trusts."""

import functools
import ssl

from django.conf import settings

from dashboard.models import Server
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.sealing import unseal


def control_headers(server: Server) -> dict[str, str]:
    """Return the header with the control key. Each server gets only the key of its environment, and the bundled ones theirs."""
    if server.bundled:
        return {settings.SERVER_CONTROL_HEADER: settings.SERVER_CONTROL_KEY}
    environment = server.environment
    if environment is None or not environment.control_key:
        return {}
    try:
        return {environment.control_header: unseal(environment.control_key)}
    except Conflict:  # the server refuses calls without it, and the environment's page says why
        return {}


def tls_name(server: Server) -> str:
    """Return the name that a server's certificate must have if it is not the host of its address; else ""."""
    environment = None if server.bundled else server.environment
    named = environment is not None and server.named_at is not None and environment.tls
    if not named or environment is None:
        return ""
    namespace, _, service = environment.kubernetes_service.partition("/")
    return f"{service}.{namespace}.svc" if service else environment.dns_name


def tls_context(server: Server) -> ssl.SSLContext:
    """Return the TLS set-up for a server. Raises Invalid if a file of its environment cannot be used."""
    environment = None if server.bundled else server.environment
    if environment is None:
        return context("", "", "")
    return context(environment.ca_file, environment.certificate, environment.certificate_key)


def context(ca_file: str, certificate: str, key: str) -> ssl.SSLContext:
    """Return a TLS set-up of PEM files. Raises Invalid, at the field, if one cannot be used."""
    if not (ca_file or certificate or key):
        return _default()
    try:
        made = ssl.create_default_context(cafile=ca_file or None)
    except (OSError, ValueError):
        raise Invalid.at("ca_file", f"the CA file '{ca_file}' is not there or has no certificate in PEM") from None
    if certificate or key:
        try:
            made.load_cert_chain(certificate, key or None, password="")
        except (OSError, ValueError):
            raise Invalid.at(
                "certificate",
                f"the client certificate '{certificate}' and its key are not there, do not belong together, or are no PEM "
                "without a password",
            ) from None
    return made


@functools.cache
def _default() -> ssl.SSLContext:
    return ssl.create_default_context()
