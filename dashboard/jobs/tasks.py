"""Celery's side of jobs: one thin task for all kinds, and the worker's heartbeat."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from celery import shared_task
from celery.signals import worker_ready, worker_shutdown

from dashboard.jobs.runner import job_run
from dashboard.shared import heartbeat


@shared_task(name="dashboard.run_job", acks_late=False)
def run_job(job_id: int) -> None:
    job_run(job_id=job_id)


class _Consumer(Protocol):
    """What Celery's celery.worker.consumer.Consumer has: its broker's connection, and its event loop."""

    connection: object | None

    def call_soon(self, function: Callable[[str], None], argument: str) -> object: ...


@worker_ready.connect
def give_heartbeats(sender: _Consumer, **_: object) -> None:
    """Give heartbeats from the loop that takes up tasks: a thread hands each one to the loop of `sender`, the consumer."""

    def run() -> None:
        while True:
            if sender.connection is None:  # it looks for its broker, and has no loop meanwhile
                heartbeat.beat("worker")
            else:
                sender.call_soon(heartbeat.beat, "worker")
            time.sleep(heartbeat.HEARTBEAT_S)

    threading.Thread(target=run, name="heartbeat", daemon=True).start()


@worker_shutdown.connect
def say_goodbye(**_: object) -> None:
    heartbeat.forget("worker")
