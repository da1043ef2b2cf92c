"""Celery's side of jobs: one thin task for all kinds, and the worker's heartbeat."""

import threading
import time
from typing import Any

from celery import shared_task
from celery.signals import worker_ready, worker_shutdown

from dashboard.jobs.runner import job_run
from dashboard.shared import heartbeat


@shared_task(name="dashboard.run_job", acks_late=False)
def run_job(job_id: int) -> None:
    job_run(job_id=job_id)


@worker_ready.connect
def give_heartbeats(sender: Any, **_: Any) -> None:
    """From the loop that takes tasks up; `sender` is the consumer, to whose loop a thread hands each heartbeat."""

    def run() -> None:
        while True:
            if sender.connection is None:  # it looks for its broker, and has no loop meanwhile
                heartbeat.beat("worker")
            else:
                sender.call_soon(heartbeat.beat, "worker")
            time.sleep(heartbeat.HEARTBEAT_S)

    threading.Thread(target=run, name="heartbeat", daemon=True).start()


@worker_shutdown.connect
def say_goodbye(**_: Any) -> None:
    heartbeat.forget("worker")
