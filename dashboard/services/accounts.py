"""People: the first administrator, and the rights of others."""

import secrets

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import transaction

from dashboard.authorisation import SYSTEM
from dashboard.services.audit import audit_record


def administrator_ensure() -> tuple[str, str] | None:
    """Makes the first administrator when there is none: (name, password to show once), else None.

    The password is empty when SLIPWAY_ADMIN_PASSWORD gave it: who set it knows it.
    """
    users = get_user_model().objects
    with transaction.atomic():
        if users.filter(is_superuser=True).exists():
            return None
        password = settings.ADMIN_PASSWORD or secrets.token_urlsafe(12)
        users.create_superuser(settings.ADMIN_USER, password=password)
        audit_record(
            actor=SYSTEM, action="account.create", summary=f"Made the first administrator, {settings.ADMIN_USER}"
        )
    return settings.ADMIN_USER, "" if settings.ADMIN_PASSWORD else password
