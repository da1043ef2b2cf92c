"""The Django application that holds every table."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
    label = "dashboard"
    verbose_name = "Slipway"

    def ready(self) -> None:
        """Every process that announces jobs uses this Celery application, and its broker; each marks what it changes."""
        import dashboard.celery  # noqa: F401
        from dashboard.shared.changes import watch_connections

        watch_connections()
