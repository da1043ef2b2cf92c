"""The Django application that holds every table."""

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import pre_migrate


class DashboardConfig(AppConfig):
    name = "dashboard"
    label = "dashboard"
    verbose_name = "Slipway"

    def ready(self) -> None:
        """Every process that announces jobs uses this Celery application, and its broker; each marks what it changes."""
        import dashboard.celery  # noqa: F401
        from dashboard.shared.changes import watch_connections

        watch_connections()
        pre_migrate.connect(_take_as_long_as_needed, sender=self)


def _take_as_long_as_needed(using: str, **_: object) -> None:
    """Let a migration's statements run for longer than a request's may."""
    if connections[using].vendor == "postgresql":
        with connections[using].cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
