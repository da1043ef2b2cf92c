"""The web process as daphne starts it: it ends in one sentence where settings or database are not such that it can work."""

import os

from dashboard.shared.startup import known_database_or_exit, settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()

from dashboard.application import application  # noqa: E402

known_database_or_exit()

__all__ = ["application"]
