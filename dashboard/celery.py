"""The Celery application. Start a worker with `celery -A dashboard worker`."""

import os

from celery import Celery

from dashboard.shared.startup import settings_or_exit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
settings_or_exit()

app = Celery("slipway")
app.set_default()  # for every thread, of which a web process has many
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["dashboard.jobs"])
