"""The entry point of the web process under daphne. It exits with one sentence if the settings or database are unusable."""

import os

from dashboard.shared.startup import known_database_or_exit, settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()

from dashboard.application import application  # noqa: E402
from dashboard.supervisor.installation import installation_or_exit  # noqa: E402

known_database_or_exit()
installation_or_exit()

__all__ = ["application"]
