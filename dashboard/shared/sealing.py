"""Seals secrets: those that the database keeps and the dashboard must send, with a key derived from SLIPWAY_SECRET_KEY, and
those of backups (`backups.sealed`)."""

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from dashboard.shared.exceptions import Conflict


def seal(secret: str) -> str:
    """Return a secret in a form that only holders of SLIPWAY_SECRET_KEY can read; "" stays ""."""
    return box(_key()).encrypt(secret.encode()).decode() if secret else ""


def unseal(sealed: str) -> str:
    """Return the secret. Raises Conflict if it was sealed with another SLIPWAY_SECRET_KEY."""
    try:
        return box(_key()).decrypt(sealed.encode()).decode() if sealed else ""
    except InvalidToken:
        raise Conflict(
            "a stored key cannot be read, because SLIPWAY_SECRET_KEY has changed: enter the key again"
        ) from None


def box(key: bytes) -> Fernet:
    """Return what encrypts and opens with a key of 32 bytes: AES-128 in CBC mode, and HMAC with SHA-256."""
    return Fernet(base64.urlsafe_b64encode(key))


def _key() -> bytes:
    return hashlib.sha256(b"dashboard.shared.sealing:" + settings.SECRET_KEY.encode()).digest()
