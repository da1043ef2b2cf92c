"""Runs only the web process, on a database with as many models, releases, people and audit entries as after months of use."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from tests.support.model_pages import model_name

BUSY_MODELS = 20  # the number of models that get requests
VERSIONS = 3
ENTRIES = 10  # the number of entries of the audit trail for each model
DEEPEST = 200  # the number of releases of the model whose pages are measured
ROLLING_OUT = 20  # the number of models with a rollout under way
ROLLOUTS = 100  # the number of rollouts of that model
READINGS = 600  # the number of readings of its rollout, the most that the dashboard keeps


class Filled:
    """A dashboard on a database with the given numbers of models, releases and people, and with rollouts. cookies: the session
    of a person with all permissions."""

    def __init__(self, data: Path, models: int, releases: int, people: int) -> None:
        self._data, self._models, self._releases, self._people = data, models, releases, people
        self._stack = ExitStack()
        self.url = ""
        self.cookies: dict[str, str] = {}
        self._pid = 0

    def __enter__(self) -> "Filled":
        os.environ["SLIPWAY_DATA"] = str(self._data)
        os.environ["DJANGO_SETTINGS_MODULE"] = "dashboard.settings"
        import django

        django.setup()
        from tests.dashboard.web_process import listening

        self._fill()
        url, process = self._stack.enter_context(listening(self._data, "-m", "daphne"))
        self.url, self._pid = url, process.pid
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def web_process(self) -> int:
        """Return the id of the process that serves the pages."""
        return self._pid

    def keep_current(self) -> None:
        """Store metrics of the last seconds, as `watch` does."""
        from dashboard.models import Server
        from tests.dashboard.many_rows import add_samples

        add_samples(Server.objects.get(), [model_name(number) for number in range(BUSY_MODELS)], time.time())

    def _fill(self) -> None:
        from django.conf import settings
        from django.contrib.auth import get_user_model
        from django.core.management import call_command
        from django.test import Client

        from dashboard.models import Model, ServerState
        from dashboard.servers.services import server_ensure_local
        from tests.dashboard import many_rows as rows

        call_command("migrate", verbosity=0)
        server = server_ensure_local()
        ServerState.objects.filter(server=server).update(state="ready")
        every = range(self._models)
        rows.add_models(server, every, versions=VERSIONS, releases=(self._releases - DEEPEST) // self._models)
        rows.deepen(server, Model.objects.get(name=model_name(0)), versions=20, releases=DEEPEST)
        rows.add_rollouts(server, range(1, ROLLING_OUT), each=3)
        rows.add_rollouts(server, range(1), each=ROLLOUTS)
        rows.add_rollout_history(server, Model.objects.get(name=model_name(0)), readings=READINGS)
        rows.add_people(range(self._people))
        rows.add_history(server, every, each=ENTRIES)
        self.keep_current()
        client = Client()
        client.force_login(get_user_model().objects.create_superuser("admin"))
        self.cookies = {settings.SESSION_COOKIE_NAME: client.cookies[settings.SESSION_COOKIE_NAME].value}
