"""Accounts and tokens over REST, and the caller's own rights."""

from django.contrib.auth import get_user_model
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from dashboard.access.authorisation import Right
from dashboard.accounts import serializers
from dashboard.accounts.accounts import account_create, account_update
from dashboard.accounts.selectors import tokens
from dashboard.accounts.tokens import token_create, token_revoke
from dashboard.shared.exceptions import NotFound
from dashboard.web.rest.endpoint import Endpoint, at, data_of, fieldless


@at("me", "api_me")
class Me(Endpoint):
    rights = {"GET": Right.VIEW}

    @extend_schema(responses=serializers.MeSerializer)
    def get(self, request: Request) -> Response:
        """The caller, with their rights."""
        actor = self.actor
        rights = [right.name.lower() for right in Right if actor.may(right)]
        return Response({"username": actor.name, "rights": rights, "token": actor.token.name if actor.token else None})


@at("tokens", "api_tokens")
class TokenList(Endpoint):
    rights = {"GET": Right.VIEW, "POST": Right.VIEW}

    @extend_schema(operation_id="tokens_list", responses=serializers.TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The caller's own tokens."""
        return self.page(tokens(self.person), serializers.TokenSerializer)

    @extend_schema(request=serializers.TokenRequestSerializer, responses={201: serializers.NewTokenSerializer})
    def post(self, request: Request) -> Response:
        """Makes a token for the caller. The text of the token is in this answer and nowhere else."""
        data = data_of(request, serializers.TokenRequestSerializer)
        token, secret = token_create(user=self.person, actor=self.actor, **data)
        return Response({**serializers.TokenSerializer(token).data, "token": secret}, status=201)


@at("tokens/<int:pk>", "api_token")
class TokenDetail(Endpoint):
    rights = {"DELETE": Right.VIEW}

    @fieldless(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Revokes one of the caller's own tokens. Clients that use the token are refused from then on."""
        token = tokens(self.person).filter(pk=pk).first()
        if token is None:
            raise NotFound("you have no such token")
        token_revoke(token=token, actor=self.actor)
        return Response(status=204)


@at("accounts", "api_accounts")
class AccountList(Endpoint):
    rights = {"GET": Right.ADMINISTER, "POST": Right.ADMINISTER}

    @extend_schema(operation_id="accounts_list", responses=serializers.AccountSerializer(many=True))
    def get(self, request: Request) -> Response:
        """Every account, with its permissions."""
        rows = get_user_model().objects.order_by("username").prefetch_related("user_permissions", "groups")
        return self.page(rows, serializers.AccountSerializer)

    @extend_schema(request=serializers.AccountRequestSerializer, responses={201: serializers.AccountSerializer})
    def post(self, request: Request) -> Response:
        """Makes an account, which may see everything and has the rights in `permissions`."""
        user = account_create(actor=self.actor, **data_of(request, serializers.AccountRequestSerializer))
        return Response(serializers.AccountSerializer(user).data, status=201)


@at("accounts/<int:pk>", "api_account")
class AccountDetail(Endpoint):
    rights = {"PATCH": Right.ADMINISTER}

    @extend_schema(request=serializers.AccountChangeSerializer, responses=serializers.AccountSerializer)
    def patch(self, request: Request, pk: int) -> Response:
        """Changes permissions, or deactivates an account."""
        user = get_object_or_404(get_user_model(), pk=pk)
        account_update(actor=self.actor, user=user, **data_of(request, serializers.AccountChangeSerializer))
        return Response(serializers.AccountSerializer(user).data)
