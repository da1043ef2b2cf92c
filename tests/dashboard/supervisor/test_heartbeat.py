"""The health that every page shows says which process does not answer, whether `up` runs or not."""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from dashboard.models import Server
from dashboard.shared import heartbeat
from tests.dashboard.conftest import beaten, text_of


def fell_silent(name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(beaten(name), (then, then))


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
    heartbeat.forget()
    assert not heartbeat.silent()


def test_a_listener_hears_each_heartbeat_once_and_takes_no_old_one_for_new() -> None:
    left, new = (settings.HEARTBEAT_DIR / f"watch.{number}.{os.getpid()}.1" for number in (4, 5))
    strange = settings.HEARTBEAT_DIR / "watch.6.1.1"
    left.touch()
    answers = heartbeat.heard_since_last("watch")
    assert not asyncio.run(answers()), "left by an earlier run"
    strange.touch()
    assert not asyncio.run(answers()), "no child of this process"
    new.touch()
    os.utime(new, (1, 1))  # the clock on the wall was put back since
    assert asyncio.run(answers())
    assert not asyncio.run(answers())
    new.unlink()
    assert not asyncio.run(answers())


def test_of_several_the_silent_one_is_named_and_the_next_of_its_name_replaces_it_if_it_is_dead(settings: Any) -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        path = settings.HEARTBEAT_DIR / f"worker.{other.pid}.1.{int(time.time()) + 1}"
        path.touch()
        then = time.time() - 40
        os.utime(path, (then, then))
        heartbeat.beat("worker")
        assert heartbeat.silent() == [f"The worker {other.pid} has not answered for 40 s: others do its work."]
        assert not heartbeat.is_silent("worker"), "one of them answers"
        heartbeat.forget_dead("worker")
        assert heartbeat.silent(), "it lives"
        other.kill()
    heartbeat.forget()
    heartbeat.beat("worker")
    assert len(heartbeat.silent()) == 1, "one that was scheduled before the end does not come back"
    heartbeat._over.clear()
    heartbeat.beat("worker")
    assert not heartbeat.silent()
