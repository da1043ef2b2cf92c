"""The entry point of the web process under daphne. It exits with one sentence if the settings or database are unusable."""

import atexit
import os
import sys

from dashboard.shared.startup import known_database_or_exit, settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()

from dashboard.application import application  # noqa: E402
from dashboard.postgresql import relay  # noqa: E402
from dashboard.shared import heartbeat  # noqa: E402
from dashboard.supervisor.installation import installation_or_exit  # noqa: E402

known_database_or_exit()
installation_or_exit()
if "daphne.server" in sys.modules:
    heartbeat.beat_from_loop("web", sys.modules["daphne.server"].twisted_loop.call_soon_threadsafe)
    atexit.register(heartbeat.forget)

    from dashboard.web.ending import end_in_order

    end_in_order()
relay.begin()

__all__ = ["application"]
