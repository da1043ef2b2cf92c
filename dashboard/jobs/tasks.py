"""Celery and jobs: one thin task for all kinds, and the worker's heartbeat."""

import logging
from collections.abc import Callable
from typing import Protocol

from celery import shared_task
from celery.signals import worker_ready, worker_shutdown
from django.db import Error

from dashboard.access.control import restored_from
from dashboard.jobs.outbox import send
from dashboard.jobs.runner import job_run, next_in_turn
from dashboard.postgresql import relay
from dashboard.shared import heartbeat

logger = logging.getLogger(__name__)


@shared_task(name="dashboard.run_job", acks_late=False)
def run_job(job_id: int) -> None:
    if restored_from():  # the job stays queued until this installation is in control
        return
    job_run(job_id=job_id)
    try:
        waiting = next_in_turn(job_id=job_id)
        if waiting is not None:
            send(run_job.delay, waiting)
    except Error as error:
        logger.error("the next job in turn waits until `watch` sends it: %s", error)


class _Consumer(Protocol):
    """The part of celery.worker.consumer.Consumer that heartbeats need: the broker's connection and the event loop."""

    connection: object | None

    def call_soon(self, function: Callable[[], None]) -> object: ...


@worker_ready.connect
def give_heartbeats(sender: _Consumer, **_: object) -> None:
    """Send heartbeats from the loop that receives tasks: a thread schedules each one on the loop of `sender`, the consumer."""

    def call_soon(function: Callable[[], None]) -> None:
        if sender.connection is None:  # the consumer reconnects to its broker, and has no loop meanwhile
            function()
        else:
            sender.call_soon(function)

    heartbeat.beat_from_loop("worker", call_soon)
    relay.begin()


@worker_shutdown.connect
def forget_heartbeat(**_: object) -> None:
    heartbeat.forget()
