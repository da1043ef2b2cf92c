"""When a server did not answer: what was sent to it then is in no count, and pages say so."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.metrics.marks import metrics_markers
from dashboard.metrics.outages import outage_sentence
from dashboard.metrics.samples import Sample, encode
from dashboard.metrics.selectors import metrics_outages
from dashboard.metrics.usage import Usage
from dashboard.models import MetricSample, Model, ModelState, Server, ServerEnvironment, ServerEvent, ServerState
from dashboard.servers.selectors import outages
from tests.dashboard.conftest import text_of

NOW = timezone.now()


def happened(server: Server, seconds_ago: float, kind: str, now: datetime = NOW, **more: str) -> None:
    ServerEvent.objects.create(server=server, at=now - timedelta(seconds=seconds_ago), kind=kind, **more)


def seconds(server: Server, since: float) -> list[tuple[float, float | None]]:
    """The outages of the last seconds, each as seconds ago."""
    found = outages([server], NOW - timedelta(seconds=since), NOW)[server.pk]
    return [((NOW - one.start).total_seconds(), one.end and (NOW - one.end).total_seconds()) for one in found]


def test_an_outage_lasts_from_a_crash_until_the_server_answers(server: Server):
    happened(server, 500, "started")
    happened(server, 300, "crashed")
    happened(server, 290, "crashed")
    happened(server, 280, "restarted")
    happened(server, 270, "ready")
    happened(server, 60, "stopped")
    assert seconds(server, 900) == [(300, 280), (60, None)]
    assert seconds(server, 295) == [(300, 280), (60, None)], "one that began before"
    assert seconds(server, 100) == [(60, None)]
    assert seconds(server, 30) == [(60, None)]


def test_other_processes_and_models_that_fail_are_no_outage(server: Server):
    happened(server, 300, "crashed", process="worker")
    happened(server, 200, "model_failed", model_name="digits")
    assert seconds(server, 900) == []
    assert outage_sentence([server]) == ""


def test_charts_mark_outages_and_failures(server: Server):
    happened(server, 300, "crashed", message="It was killed.")
    happened(server, 240, "restarted", message="It is back.")
    happened(server, 100, "model_failed", model_name="digits", message="No memory.")
    happened(server, 90, "model_failed", model_name="other", message="No file.")
    end = NOW.timestamp()
    found = metrics_outages(servers=[server], start=end - 900, end=end)
    assert [(round(end - one["start"]), round(end - one["end"])) for one in found] == [(300, 240)]
    markers = metrics_markers(servers=[server], start=end - 900, end=end, model_name="digits")
    assert [(one["text"], one["bad"]) for one in markers] == [
        ("It was killed.", True),
        ("It is back.", False),
        ("No memory.", True),
    ]
    assert markers[2]["address"].endswith("?model=digits")


@pytest.mark.parametrize("path", ["/", "/models/digits/"])
def test_the_errors_say_that_an_outage_is_not_in_them(server: Server, as_person: Callable[..., Client], path: str):
    Model.objects.create(name="digits")
    assert "did not answer" not in text_of(as_person(), path)
    now = timezone.now()
    happened(server, 300, "crashed", now)
    happened(server, 240, "restarted", now)
    said = "local did not answer for 1 min of the last 15 min: "
    assert f"{said}requests of that time failed, and no figure counts them" in text_of(as_person(), path)
    began = int((now - timedelta(seconds=300)).timestamp())
    for ago in range(1, 61):
        for model_name in ("", "digits"):
            data = encode(Sample(Usage(success=58, fail=1).pack()))
            MetricSample.objects.create(server=server, model_name=model_name, resolution=1, at=began - ago, data=data)
    lost = "about 3.54 k requests failed, at the rate of the minute before; no other figure counts them"
    assert f"{said}{lost}" in text_of(as_person(), path)


def test_of_several_servers_those_that_are_down_and_those_that_serve_are_named(
    server: Server, as_person: Callable[..., Client]
):
    staging = ServerEnvironment.objects.create(name="staging")
    others = [Server.objects.create(name=f"other-{n}", http_url=f"http://127.0.0.1:{n}") for n in (1, 2, 3, 4)]
    Server.objects.filter(name="other-4").update(environment=staging)
    for one in (server, *others):
        ServerState.objects.update_or_create(server=one, defaults={"state": "ready"})
    now = timezone.now()
    happened(server, 300, "crashed", now)
    happened(server, 240, "restarted", now)
    happened(others[0], 120, "unreachable", now)
    happened(others[3], 500, "unreachable", now)
    said = (
        r"other-1 did not answer for 2 min[\d s]* and local for 1 min of the last 15 min; other-1 still does not answer, "
        r"local, other-2 and other-3 serve: "
    )
    assert re.search(said, text_of(as_person(), "/"))
    for one in others[1:]:
        happened(one, 60, "unreachable", now)
    happened(server, 60, "crashed", now)
    assert "; local, other-1, other-2 and 2 more still do not answer: " in outage_sentence([server, *others])


@pytest.mark.parametrize(("requests", "said"), [(1, "requests of that time failed"), (0, "there were no requests")])
def test_a_request_in_the_minute_before_is_not_nobody(server: Server, requests: int, said: str):
    now = timezone.now()
    happened(server, 300, "crashed", now)
    happened(server, 290, "restarted", now)
    at = int((now - timedelta(seconds=330)).timestamp())
    data = encode(Sample(Usage(success=requests).pack()))
    MetricSample.objects.create(server=server, model_name="", resolution=1, at=at, data=data)
    assert f": {said}" in outage_sentence([server])


def test_a_server_that_is_down_is_one_line_however_many_models_it_has(server: Server, as_person: Callable[..., Client]):
    for number in range(18):
        Model.objects.create(name=f"model{number}", desired_state="loaded")
        ModelState.objects.create(
            server=server, model_name=f"model{number}", version=1, state="UNAVAILABLE", reason="the server is down"
        )
    ServerState.objects.update(state="down", last_reason="The process ended by signal SIGKILL.")
    page = text_of(as_person(), "/")
    assert page.count('class="attention"') == 1
    assert "The process ended by signal SIGKILL. 18 models wait for it and come back with it." in page
    assert 'data-failing="1"' in page
    assert 'class="server-line' not in page, "it is named once"


def test_many_models_that_load_are_one_line(server: Server, as_person: Callable[..., Client]):
    for number in range(18):
        Model.objects.create(name=f"model{number}", desired_state="loaded")
        ModelState.objects.create(server=server, model_name=f"model{number}", version=1, state="LOADING")
    page = text_of(as_person(), "/")
    assert page.count('class="attention"') == 1
    assert "18 models" in page


def test_hardware_that_is_not_there_has_no_panel(server: Server, as_person: Callable[..., Client]):
    Model.objects.create(name="digits")
    pages = ("/models/digits/", "/servers/", "/servers/local/")
    for path in pages:
        assert "GPU" not in text_of(as_person(), path)
    ServerState.objects.update(info={"gpus": ["GPU-1"]})
    for path in pages:
        assert "GPU" in text_of(as_person(), path)
