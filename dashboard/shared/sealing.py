"""Seals secrets that the database keeps and the dashboard must send: encrypted with a key derived from SLIPWAY_SECRET_KEY."""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from dashboard.shared.exceptions import Conflict


def seal(secret: str) -> str:
    """Return a secret in a form that only holders of SLIPWAY_SECRET_KEY can read; "" stays ""."""
    return _box().encrypt(secret.encode()).decode() if secret else ""


def unseal(sealed: str) -> str:
    """Return the secret. Raises Conflict if it was sealed with another SLIPWAY_SECRET_KEY."""
    try:
        return _box().decrypt(sealed.encode()).decode() if sealed else ""
    except InvalidToken:
        raise Conflict(
            "a stored key cannot be read, because SLIPWAY_SECRET_KEY has changed: enter the key again"
        ) from None


def _box() -> Fernet:
    key = hashlib.sha256(b"dashboard.shared.sealing:" + settings.SECRET_KEY.encode()).digest()
    return Fernet(base64.urlsafe_b64encode(key))
