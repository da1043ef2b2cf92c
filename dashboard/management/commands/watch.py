"""`manage.py watch`: brings servers to the desired state, does periodic work, and stores the history of metrics."""

import asyncio
import time

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dashboard.servers.selectors import servers
from dashboard.shared.startup import check_release, one_sentence
from dashboard.supervisor.installation import check_installation
from dashboard.supervisor.preflight import DataFolderLock
from dashboard.watch.watcher import watch

# A watcher whose `up` was killed takes a moment to end.
LOCK_TIMEOUT_S = 15.0


class Command(BaseCommand):
    requires_system_checks = []
    help = "Bring servers and models to the desired state; collect metrics; expire, re-queue and prune."

    def handle(self, *args: object, **options: object) -> None:
        with one_sentence():
            lock = DataFolderLock(settings.DATA_DIR, "watch")
            deadline = time.monotonic() + LOCK_TIMEOUT_S
            while not lock.acquire():
                if time.monotonic() > deadline:
                    raise CommandError(f"another watcher already runs on this data folder (process {lock.holder()})")
                time.sleep(0.2)
            check_release()
            check_installation()
            list(servers())
        asyncio.run(watch())
