"""The health that every page shows says which process does not answer, whether `up` runs or not."""

import asyncio
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from dashboard.models import Server
from dashboard.shared import heartbeat
from tests.dashboard.conftest import text_of


def fell_silent(name: str, seconds: float) -> None:
    heartbeat.beat(name)
    then = time.time() - seconds
    os.utime(Path(settings.HEARTBEAT_DIR, name), (then, then))


@pytest.mark.parametrize(("name", "title"), [("up", "supervisor"), ("watch", "watcher"), ("worker", "worker")])
def test_a_process_that_fell_silent_is_named_on_every_page(
    server: Server, as_person: Callable[..., Client], name: str, title: str
) -> None:
    viewer = as_person()
    for other in heartbeat.PROCESSES:
        heartbeat.beat(other)
    assert "has not answered" not in text_of(viewer, "/")
    fell_silent(name, 40)
    for path in ("/", "/models/", "/servers/local/", "/health"):
        page = text_of(viewer, path)
        said = re.findall(rf"The {title} has not answered for (\d+) s", page)
        assert len(said) == 1
        assert int(said[0]) >= 40
        assert page.count("has not answered for") == 1
        assert 'data-failing="1"' in page
    heartbeat.beat(name)
    assert "has not answered" not in text_of(viewer, "/health")


def test_a_process_that_never_ran_here_or_ended_in_good_order_is_not_missed(
    server: Server, as_person: Callable[..., Client]
) -> None:
    fell_silent("watch", 4000)
    assert "The watcher has not answered for 67 min" in text_of(as_person(), "/health")
    heartbeat.forget("watch")
    assert not heartbeat.silent()


def test_a_listener_hears_each_heartbeat_once_and_takes_no_old_one_for_new() -> None:
    heartbeat.beat("watch")
    answers = heartbeat.heard_since_last("watch")
    assert not asyncio.run(answers()), "left by an earlier run"
    fell_silent("watch", -3600)  # the clock on the wall was put back since
    assert asyncio.run(answers())
    assert not asyncio.run(answers())
    heartbeat.forget("watch")
    assert not asyncio.run(answers())
