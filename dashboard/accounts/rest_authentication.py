"""Reads the header `Authorization: Bearer <token>` of REST requests, with tokens from accounts.tokens."""

from django.contrib.auth.models import User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from dashboard.accounts.tokens import token_authenticate
from dashboard.models import ApiToken


class TokenAuthentication(BaseAuthentication):
    """Sets `request.auth` to the ApiToken, which authorisation.actor_of reads."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, secret = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token_authenticate(secret=secret.strip())
        if token is None:
            raise AuthenticationFailed("the token is not known or has expired")
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]  # its registry
    target_class = TokenAuthentication
    name = "token"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
