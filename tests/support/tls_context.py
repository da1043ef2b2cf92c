"""Has httpx make its default TLS context once in a test process.

`httpx.get` and each new client make one, even for an http:// address. That takes 25 ms, more than most requests of tests.
"""

import functools
import ssl
from typing import Any

from httpx._transports import default

_make = default.create_ssl_context
_default_context = functools.cache(_make)


def share() -> None:
    """Replace the function by which httpx makes contexts. Called once, before any test runs."""
    default.create_ssl_context = _shared


def _shared(verify: ssl.SSLContext | str | bool = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    if verify is True and cert is None:
        return _default_context(trust_env=trust_env)
    return _make(verify, cert, trust_env)
