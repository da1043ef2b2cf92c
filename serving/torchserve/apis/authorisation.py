"""Checks calls to TorchServe's APIs: a client must send the key of the API, from the server's key file."""

from collections.abc import Mapping

from serving.cli.options import Options
from serving.frontends.shared.authorisation import GRPC_PREFIX, Authoriser
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.registry.tokens import Tokens, TokenType

# Groups of routes that need the key of an API other than the listener's API, or no key.
TOKEN_GROUP = "torchserve-token"
MANAGEMENT_GROUP = "torchserve-management"
DESCRIPTION_GROUP = "torchserve-description"
_OPEN = ("metrics", DESCRIPTION_GROUP)
_KINDS = {TOKEN_GROUP: TokenType.API, MANAGEMENT_GROUP: TokenType.MANAGEMENT}


class TokenAuthoriser(Authoriser):
    """Checks that a client sends the key of one API."""

    def __init__(self, tokens: Tokens, kind: TokenType) -> None:
        super().__init__((), GRPC_PREFIX, None)
        self.open = False
        self._kept = tokens
        self._kind = kind

    def check(self, group: str, headers: Mapping[str, str], model: str | None = None) -> None:
        if group not in _OPEN:
            self._kept.check(headers, _KINDS.get(group, self._kind))


def authoriser(source: TorchServeSource, options: Options, kind: TokenType) -> Authoriser:
    """Return the checks of an API. Without TorchServe's tokens, these are the checks that --auth-file configures."""
    if source.tokens is not None:
        return TokenAuthoriser(source.tokens, kind)
    return Authoriser.from_options(options, "http")
