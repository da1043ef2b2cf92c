"""`manage.py watch`: brings servers to the desired state, does periodic work, and stores the history of metrics."""

import asyncio

from django.core.management.base import BaseCommand

from dashboard.servers.selectors import servers
from dashboard.shared.release import check_release
from dashboard.shared.startup import one_sentence
from dashboard.supervisor.installation import check_installation
from dashboard.watch.watcher import watch


class Command(BaseCommand):
    requires_system_checks = []
    help = "Bring servers and models to the desired state; collect metrics; expire, re-queue and prune."

    def handle(self, *args: object, **options: object) -> None:
        with one_sentence():
            check_release()
            check_installation()
            list(servers())
        asyncio.run(watch())
