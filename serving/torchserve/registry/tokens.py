"""Tokens for TorchServe's APIs: a key for inference, one for management and one to request new keys.

The keys are written to `key_file.json` in the working directory, which only its owner can read, and are never logged. The keys
for inference and management expire. Source: docs/token_authorization_api.md of TorchServe 0.12.
"""

import datetime
import enum
import hmac
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from serving.core.errors import PermissionDenied
from serving.torchserve.registry.errors import server_error

log = logging.getLogger(__name__)

KEY_FILE = "key_file.json"
_BEARER = re.compile(r"Bearer\s+(\S+)")


class TokenType(enum.Enum):
    """The purpose of a token. The value is the name of the token in the key file."""

    INFERENCE = "inference"
    MANAGEMENT = "management"
    API = "API"


class Tokens:
    """The three valid keys. Runs on the event loop's thread."""

    def __init__(self, folder: Path, expiration_min: float) -> None:
        """Make new keys and write them. Raises OSError if the file cannot be written."""
        self.path = folder / KEY_FILE
        self._lifetime_s = expiration_min * 60
        self._keys = {token: _new_key() for token in TokenType}
        self._expires_at = {
            token: time.time() + self._lifetime_s for token in (TokenType.INFERENCE, TokenType.MANAGEMENT)
        }
        self._write()
        log.info(
            "TorchServe's APIs accept only requests with a token: the keys are in %s, the management API's /token makes "
            "new keys, and --disable-token-auth turns this off",
            KEY_FILE,
        )

    def check(self, headers: Mapping[str, str], token: TokenType) -> None:
        """Raise PermissionDenied unless these headers, with lower-case names, have the key."""
        found = _BEARER.fullmatch(headers.get("authorization", ""))
        given = found[1] if found else ""
        right = hmac.compare_digest(given.encode("utf-8", "replace"), self._keys[token].encode())
        if not right or time.time() >= self._expires_at.get(token, float("inf")):
            raise refused("Authentication" if token is TokenType.API else "Authorization")

    def renew(self, token: TokenType) -> None:
        """Replace one key by a new one, also in the file. If the file cannot be written, the old key stays valid, and
        TorchServeError is raised."""
        before = self._keys[token], self._expires_at[token]
        self._keys[token] = _new_key()
        self._expires_at[token] = time.time() + self._lifetime_s
        try:
            self._write()
        except OSError as error:
            self._keys[token], self._expires_at[token] = before
            log.error("%s cannot be written, so the key was not changed: %s", KEY_FILE, error.strerror)
            raise server_error(f"{KEY_FILE} cannot be written, so the key was not changed") from None

    def close(self) -> None:
        """Remove the file, if it still has these keys."""
        try:
            if json.loads(self.path.read_text())["API"]["key"] == self._keys[TokenType.API]:
                self.path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            log.debug("the key file is missing, or was changed")

    def _write(self) -> None:
        """Replace the file atomically, so that no reader sees half of it. Only the file's owner may read it."""
        content: dict[str, dict[str, str]] = {}
        for token in (TokenType.MANAGEMENT, TokenType.INFERENCE, TokenType.API):
            content[token.value] = {"key": self._keys[token]}
            if token in self._expires_at:
                content[token.value]["expiration time"] = _as_instant(self._expires_at[token])
        temporary = self.path.with_name(f".{KEY_FILE}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w") as file:
                json.dump(content, file, indent=2)
            temporary.replace(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def refused(what: str) -> PermissionDenied:
    """what: "Authentication" for requests for a new key, "Authorization" for other requests."""
    return PermissionDenied(f"Token {what} failed. Token either incorrect, expired, or not provided correctly")


def _new_key() -> str:
    return secrets.token_urlsafe(6)  # 8 characters


def _as_instant(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
