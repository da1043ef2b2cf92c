"""Encrypts keys with a passphrase: scrypt makes the key of AES-256-GCM."""

import json
import os
from base64 import b64decode, b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dashboard.shared.exceptions import Invalid

# 64 MiB of memory and a fifth of a second for each guess.
_N, _R, _P = 2**16, 8, 1
_PURPOSE = b"slipway backup keys 1"


def seal(passphrase: str, values: dict[str, str]) -> dict[str, str]:
    """Return the values encrypted, as texts in base64."""
    salt, nonce = os.urandom(16), os.urandom(12)
    content = AESGCM(_key(passphrase, salt)).encrypt(nonce, json.dumps(values).encode(), _PURPOSE)
    return {name: b64encode(part).decode() for name, part in (("salt", salt), ("nonce", nonce), ("content", content))}


def unseal(passphrase: str, sealed: dict[str, str]) -> dict[str, str]:
    """Return what was encrypted. Raises Invalid if the passphrase is another, or if somebody has changed the content."""
    try:
        salt, nonce, content = (b64decode(sealed[name]) for name in ("salt", "nonce", "content"))
        values: dict[str, str] = json.loads(AESGCM(_key(passphrase, salt)).decrypt(nonce, content, _PURPOSE))
    except InvalidTag:
        raise Invalid("the passphrase is not the one of this backup's keys (SLIPWAY_BACKUP_PASSPHRASE)") from None
    except (KeyError, ValueError):
        raise Invalid("the keys of this backup are damaged") from None
    return values


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_N, r=_R, p=_P).derive(passphrase.encode())
