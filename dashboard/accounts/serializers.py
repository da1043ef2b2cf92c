"""The shapes of accounts, tokens and the audit trail as JSON in the REST API. The rules are in services."""

from typing import Any

from django.contrib.auth.models import User
from rest_framework import serializers

from dashboard import models
from dashboard.access.authorisation import Actor, token_rights
from dashboard.accounts.accounts import granted
from dashboard.accounts.tokens import groups_of
from dashboard.shared import choices


class TokenSerializer(serializers.ModelSerializer[models.ApiToken]):
    opens = serializers.SerializerMethodField(help_text="The rights of the token that its person has at present.")

    class Meta:
        model = models.ApiToken
        fields = ["id", "name", "prefix", "rights", "opens", "model_names", "created_at", "expires_at", "last_used_at"]

    def get_opens(self, token: models.ApiToken) -> list[str]:
        return list(token_rights(Actor(user=token.user, token=token)))


class TokenRequestSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    rights = serializers.ListField(child=serializers.ChoiceField(choices.TokenRight.choices), allow_empty=False)
    model_names = serializers.ListField(child=serializers.CharField(), required=False, default=list)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class NewTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="Shown once and never again.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]


class AuditSerializer(serializers.ModelSerializer[models.AuditEntry]):
    class Meta:
        model = models.AuditEntry
        fields = ["id", "at", "actor_name", "action", "model_name", "summary", "before", "after"]


class HappeningSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(source="anchor")
    at = serializers.DateTimeField()
    who = serializers.CharField()
    kind = serializers.CharField()
    model = serializers.CharField(source="model_name")
    text = serializers.CharField()
    failed = serializers.BooleanField()
    before = serializers.JSONField()
    after = serializers.JSONField()


class AccountSerializer(serializers.Serializer[Any]):
    id = serializers.IntegerField()
    username = serializers.CharField()
    is_active = serializers.BooleanField()
    is_superuser = serializers.BooleanField()
    permissions = serializers.SerializerMethodField()
    groups = serializers.SerializerMethodField(help_text="Groups whose use is added up, and which share quotas.")

    def get_groups(self, user: User) -> list[str]:
        return groups_of(user)

    def get_permissions(self, user: User) -> list[str]:
        return granted(user)


class AccountRequestSerializer(serializers.Serializer[Any]):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(write_only=True, trim_whitespace=False)
    permissions = serializers.ListField(child=serializers.CharField(), default=list)


class AccountChangeSerializer(serializers.Serializer[Any]):
    permissions = serializers.ListField(child=serializers.CharField(), required=False)
    is_active = serializers.BooleanField(required=False)
    groups = serializers.ListField(child=serializers.CharField(max_length=150), required=False)


class MeSerializer(serializers.Serializer[Any]):
    username = serializers.CharField()
    rights = serializers.ListField(child=serializers.CharField())
    token = serializers.CharField(allow_null=True)
