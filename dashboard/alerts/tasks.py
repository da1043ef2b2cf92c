"""The worker's part: it sends messages when they are made, and does the work of `watch` for alerts while `watch` is silent."""

import logging
import threading
import time

from celery import shared_task
from celery.signals import worker_ready
from django.db import close_old_connections

from dashboard.alerts.outbox import alerts_tell, deliveries_send
from dashboard.alerts.services import alerts_evaluate
from dashboard.alerts.table import PROCESS_SILENT, kinds
from dashboard.shared import heartbeat

logger = logging.getLogger(__name__)

STAND_IN_S = 5.0
OVERDUE_S = 5.0  # after this time `watch` sends a message that no worker has taken


@shared_task(name="dashboard.send_alerts", acks_late=False)
def send_alerts() -> None:
    deliveries_send()


def announce() -> None:
    """Ask a worker to send what is due. If the broker is down, `watch` sends it."""
    try:
        send_alerts.delay()
    except Exception:
        logger.warning("the queue did not take the messages of alerts; watch sends them")


def alerts_watch(*, spans: bool) -> str:
    """Evaluate the alerts about history (spans), or all others, and tell people, for `watch`; return what failed."""
    failed = alerts_evaluate(only=[kind.name for kind in kinds() if kind.spans == spans])
    alerts_tell(announce=announce)
    return failed


def messages_watch() -> int:
    """Send, for `watch`, what no worker has taken and what is to be tried again; return the number of messages."""
    return deliveries_send(overdue_s=OVERDUE_S)


def stand_in() -> bool:
    """Tell that `watch` is silent, if it is. Return whether it is."""
    if not heartbeat.is_silent("watch"):
        return False
    alerts_evaluate(only=[PROCESS_SILENT])
    alerts_tell()
    deliveries_send()
    return True


@worker_ready.connect
def stand_in_for_watch(**_: object) -> None:
    """Look after `watch` on a thread of the worker."""

    def run() -> None:
        while True:
            time.sleep(STAND_IN_S)
            try:
                stand_in()
            except Exception as error:
                logger.warning("watch was not looked after: %s", error)
            finally:
                close_old_connections()

    threading.Thread(target=run, name="stand-in", daemon=True).start()
