"""Encrypts keys with a passphrase, of which scrypt makes the key of the box."""

import json
import os
from base64 import b64decode, b64encode

from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from dashboard.shared.exceptions import Invalid
from dashboard.shared.sealing import box

# 64 MiB of memory and a fifth of a second for each guess.
_N, _R, _P = 2**16, 8, 1


def seal(passphrase: str, values: dict[str, str]) -> dict[str, str]:
    """Return the values encrypted, as texts in base64."""
    salt = os.urandom(16)
    content = box(_key(passphrase, salt)).encrypt(json.dumps(values).encode())
    return {"salt": b64encode(salt).decode(), "content": content.decode()}


def unseal(passphrase: str, sealed: dict[str, str]) -> dict[str, str]:
    """Return what was encrypted. Raises Invalid if the passphrase is another, or if somebody has changed the content."""
    try:
        salt = b64decode(sealed["salt"])
        values: dict[str, str] = json.loads(box(_key(passphrase, salt)).decrypt(sealed["content"]))
    except InvalidToken:
        raise Invalid("the passphrase is not the one of this backup's keys (SLIPWAY_BACKUP_PASSPHRASE)") from None
    except (KeyError, ValueError, TypeError):
        raise Invalid("the keys of this backup are damaged") from None
    return values


def _key(passphrase: str, salt: bytes) -> bytes:
    return Scrypt(salt=salt, length=32, n=_N, r=_R, p=_P).derive(passphrase.encode())
