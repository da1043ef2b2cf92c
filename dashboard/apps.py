"""The Django application, to which all tables belong."""

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import pre_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"
    label = "dashboard"
    verbose_name = "Slipway"

    def ready(self) -> None:
        """Import the Celery application, which announces jobs. Mark the tables that this process changes (shared.changes)."""
        import dashboard.celery  # noqa: F401
        from dashboard.shared.changes import watch_connections

        watch_connections()
        pre_migrate.connect(_lift_statement_timeout, sender=self)


def _lift_statement_timeout(using: str, **_: object) -> None:
    """Let the statements of a migration run longer than the statements of a request."""
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
