"""The Django application, to which all tables belong."""

import gc

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import ModelSignal, post_migrate, pre_migrate

from repository.core.imports import without_blas_threads


class DashboardConfig(AppConfig):
    name = "dashboard"
    label = "dashboard"
    verbose_name = "Slipway"

    def import_models(self) -> None:
        """Import the tables, and NumPy with them."""
        with without_blas_threads():
            super().import_models()

    def ready(self) -> None:
        """Import the Celery application, which announces jobs. Mark the tables that this process changes (shared.changes)."""
        import dashboard.celery  # noqa: F401
        from dashboard.shared import changes
        from dashboard.shared.release import record_changes

        changes.watch_connections()
        if connections["default"].vendor == "postgresql":
            from dashboard.postgresql import references, relay

            changes.tell_others = relay.tell
            post_migrate.connect(references.delete_in_database, sender=self)
        for signal in (pre_migrate, post_migrate):
            signal.connect(_limit_statements, sender=self)
            signal.connect(record_changes, sender=self)
        gc.freeze()  # what is imported stays
        gc.enable()


def _limit_statements(signal: ModelSignal, using: str, **_: object) -> None:
    """Let the statements of a migration run longer than the statements of a request."""
    if connections[using].vendor == "postgresql":
        from dashboard.postgresql.session import Session

        Session.statement_limit_s = 0 if signal is pre_migrate else None
