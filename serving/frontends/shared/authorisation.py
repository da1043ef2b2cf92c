"""Authorisation: keys in headers for restricted groups of routes and, with --auth-file, tokens for inference.

    authoriser = Authoriser.from_options(options, "http")       or "grpc"
    if not authoriser.open: authoriser.check("inference", headers, "digits")

Restricted groups follow Triton (docs/customization_guide/inference_protocols.md, "Limit Endpoint Access"): over gRPC
the header is "triton-grpc-protocol-" and the key's name. Groups: see serving.cli.option_values.RESTRICTABLE.

Of several watchers of the dashboard, the one that leads sends a fencing number with the key of a group, in the header
"slipway-fence". The number rises with each leader. A request with a number below the highest so far comes from an earlier
leader, and is refused.

The format of the auth file is in serving.usage.auth_file.
"""

import hmac
import time
from collections.abc import Mapping
from typing import Literal

from serving.cli.option_values import Restriction
from serving.cli.options import Options
from serving.core.errors import Outdated, PermissionDenied, Unauthenticated, invalid
from serving.usage.auth_file import AuthFile, digest_of

FENCE_HEADER = "slipway-fence"
GRPC_PREFIX = "triton-grpc-protocol-"
# Groups that need a token, and the right that each group needs. Other groups are open unless restricted.
GUARDED = {"inference": "infer", "shared-memory": "infer"}


class Authoriser:
    """The checks of one protocol. `open` is True if no check is configured; callers then skip `check`."""

    def __init__(self, restrictions: tuple[Restriction, ...], prefix: str, tokens: AuthFile | None) -> None:
        self._keys: dict[str, tuple[str, bytes]] = {}
        for restriction in restrictions:
            for group in restriction.apis:
                self._keys[group] = (prefix + restriction.header.lower(), restriction.value.encode())
        self._tokens = tokens
        self._noun = "protocol" if prefix else "API"  # Triton's words
        self.open = not self._keys and tokens is None
        self._fence = 0  # the highest number so far

    @classmethod
    def from_options(cls, options: Options, protocol: Literal["http", "grpc"]) -> "Authoriser":
        tokens = AuthFile.of(options.auth_file) if options.auth_file else None
        if protocol == "grpc":
            return cls(options.grpc_restricted_protocol, GRPC_PREFIX, tokens)
        return cls(options.http_restricted_api, "", tokens)

    def check(self, group: str, headers: Mapping[str, str], model: str | None = None) -> None:
        """Raise PermissionDenied, Unauthenticated or Outdated if these headers, in lower case, do not allow the request."""
        key = self._keys.get(group)
        if key is not None:
            header, expected = key
            if not hmac.compare_digest(headers.get(header, "").encode(), expected):
                raise PermissionDenied(f"This {self._noun} is restricted, expecting header '{header}'")
            if (fence := headers.get(FENCE_HEADER)) is not None:
                self._check_fence(fence)
        if self._tokens is not None and group in GUARDED:
            self._check_token(self._tokens, GUARDED[group], headers, model)

    def _check_fence(self, text: str) -> None:
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise invalid(f"expected a number in the header '{FENCE_HEADER}'")
        if int(text) < self._fence:
            raise Outdated(f"another watcher leads with number {self._fence}: number {text} may change nothing here")
        self._fence = int(text)

    def holds_key(self, headers: Mapping[str, str]) -> bool:
        """Return whether the headers have the key of any restricted group, as the dashboard's headers do."""
        return any(
            hmac.compare_digest(headers.get(header, "").encode(), expected) for header, expected in self._keys.values()
        )

    def _check_token(self, tokens: AuthFile, right: str, headers: Mapping[str, str], model: str | None) -> None:
        header = headers.get("authorization", "")
        grant = tokens.grant(header)
        if grant is None and not digest_of(header):
            raise Unauthenticated(
                "inference on this server needs a token: expected the header 'Authorization: Bearer <token>'"
            )
        if grant is None or grant.expires_at <= time.time():
            raise Unauthenticated("the token is not known or has expired")
        if right not in grant.rights:
            raise PermissionDenied(f"the token does not have the right '{right}'")
        if model is not None and model not in grant.models and "*" not in grant.models:
            raise PermissionDenied(f"the token is not for model '{model}'")
