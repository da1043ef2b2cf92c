"""The Celery application. Start a worker with `celery -A dashboard worker`."""

import os

from celery import Celery
from celery.signals import worker_init

from dashboard.shared.startup import known_database_or_exit, settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()

app = Celery("slipway")
app.set_default()  # every thread of a web process uses this app
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["dashboard.jobs", "dashboard.alerts"])


@worker_init.connect
def refuse_unknown_database(**_: object) -> None:
    from dashboard.supervisor.installation import installation_or_exit  # the models are loaded by now

    known_database_or_exit()
    installation_or_exit()
