"""Authorisation: keys in headers for restricted groups of routes and, with --auth-file, tokens for inference.

    authoriser = Authoriser.from_options(options, "http")       or "grpc"
    if not authoriser.open: authoriser.check("inference", headers, "digits")

Restricted groups follow Triton (docs/customization_guide/inference_protocols.md, "Limit Endpoint Access"): over gRPC
the header is "triton-grpc-protocol-" and the key's name. Groups: see serving.cli.option_values.RESTRICTABLE.

The auth file is JSON, and is read again when it changes. It has the SHA-256 of each token, not the token:

    {"tokens": [{"name": "shop", "sha256": "<hex>", "models": ["digits"] or ["*"], "rights": ["infer"],
                 "expires_at": 1790000000 (unix seconds) or null}]}
"""

import hashlib
import hmac
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import orjson

from serving.cli.option_values import Restriction
from serving.cli.options import Options
from serving.core.errors import PermissionDenied, ServingError, Unauthenticated, invalid
from serving.resources.followed_file import follow

log = logging.getLogger(__name__)

GRPC_PREFIX = "triton-grpc-protocol-"
# Groups that need a token, and the right that each group needs. Other groups are open unless restricted.
GUARDED = {"inference": "infer", "shared-memory": "infer"}
RECHECK_S = 1.0  # pause between two checks of the auth file's mtime


class _Grant(NamedTuple):
    models: frozenset[str]
    rights: frozenset[str]
    expires_at: float


class TokenFile:
    """The tokens of an --auth-file, by their SHA-256."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._refused: tuple[int, int, int] | None = None  # the stamp of a malformed file, which is logged once
        self._grants: dict[str, _Grant] = {}
        self._refresh(strict=True)
        follow("auth", self._look_again, RECHECK_S)

    def grant(self, token: str) -> _Grant | None:
        """Return the grant of a token, or None if the token is unknown."""
        return self._grants.get(hashlib.sha256(token.encode()).hexdigest())

    def _look_again(self) -> None:
        self._refresh(strict=False)

    def _refresh(self, strict: bool) -> None:
        """Read the file again if it has changed. A missing file grants nothing. A malformed file does not change the grants.
        strict: whether to raise for a missing or malformed file, as at the start."""
        stamp: tuple[int, int, int] | None = None
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._stamp:
                self._grants = _parse(self._path.read_bytes())
                self._stamp = stamp
        except OSError as error:
            if strict:
                raise invalid(f"--auth-file cannot be read: {error.strerror}") from None
            if self._stamp is not None:
                log.error("the auth file is gone: no token is accepted until it is back")
            self._stamp, self._grants = None, {}
        except ServingError as error:
            if strict:
                raise
            if stamp != self._refused:
                log.error("the changed auth file is not used: %s", error.message)
            self._refused = stamp


def _parse(content: bytes) -> dict[str, _Grant]:
    grants = {}
    try:
        for entry in orjson.loads(content)["tokens"]:
            expires_at = entry.get("expires_at")
            grants[entry["sha256"].lower()] = _Grant(
                frozenset(entry["models"]),
                frozenset(entry["rights"]),
                float("inf") if expires_at is None else float(expires_at),
            )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise invalid(f"--auth-file: expected an object with a list of tokens, got {type(error).__name__}") from None
    return grants


class Authoriser:
    """The checks of one protocol. `open` is True if no check is configured; callers then skip `check`."""

    def __init__(self, restrictions: tuple[Restriction, ...], prefix: str, tokens: TokenFile | None) -> None:
        self._keys: dict[str, tuple[str, bytes]] = {}
        for restriction in restrictions:
            for group in restriction.apis:
                self._keys[group] = (prefix + restriction.header.lower(), restriction.value.encode())
        self._tokens = tokens
        self._noun = "protocol" if prefix else "API"  # Triton's words
        self.open = not self._keys and tokens is None

    @classmethod
    def from_options(cls, options: Options, protocol: Literal["http", "grpc"]) -> "Authoriser":
        tokens = TokenFile(options.auth_file) if options.auth_file else None
        if protocol == "grpc":
            return cls(options.grpc_restricted_protocol, GRPC_PREFIX, tokens)
        return cls(options.http_restricted_api, "", tokens)

    def check(self, group: str, headers: Mapping[str, str], model: str | None = None) -> None:
        """Raise PermissionDenied or Unauthenticated if these headers, with lower-case names, do not allow the request."""
        key = self._keys.get(group)
        if key is not None:
            header, expected = key
            if not hmac.compare_digest(headers.get(header, "").encode(), expected):
                raise PermissionDenied(f"This {self._noun} is restricted, expecting header '{header}'")
        if self._tokens is not None and group in GUARDED:
            self._check_token(self._tokens, GUARDED[group], headers, model)

    def holds_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers have the key of any restricted group, as the dashboard's headers do."""
        return any(
            hmac.compare_digest(headers.get(header, "").encode(), expected) for header, expected in self._keys.values()
        )

    def _check_token(self, tokens: TokenFile, right: str, headers: Mapping[str, str], model: str | None) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated(
                "inference on this server needs a token: expected the header 'Authorization: Bearer <token>'"
            )
        grant = tokens.grant(token.strip())
        if grant is None or grant.expires_at <= time.time():
            raise Unauthenticated("the token is not known or has expired")
        if right not in grant.rights:
            raise PermissionDenied(f"the token does not have the right '{right}'")
        if model is not None and model not in grant.models and "*" not in grant.models:
            raise PermissionDenied(f"the token is not for model '{model}'")
