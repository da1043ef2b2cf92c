"""The advice over REST, on the model's page and in the editor: from the samples since the configuration began to serve."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.advice import selectors
from dashboard.advice.candidates import setting_of
from dashboard.advice.simulation import ServiceTime
from dashboard.metrics.samples import FINE, Sample, encode
from dashboard.models import MetricSample, Model, Release, ReleaseSpan, Server, Version
from dashboard.releases.selectors import current_document
from tests.dashboard.advice.shapes import poisson, traffic
from tests.dashboard.conftest import CONFIG, serve, text_of
from tests.dashboard.feeds import PROCESS

SECONDS = 20
WAITING = CONFIG + "dynamic_batching { max_queue_delay_microseconds: 40000 }\n"


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    selectors._kept.clear()
    yield
    selectors._kept.clear()


@pytest.fixture
def model(published: Callable[..., Version], server: Server) -> Model:
    """A model that has served for a minute with a long queue delay."""
    found = published(load=True, make_live=True, config_text=WAITING).model
    serve(found, server)
    minute = timedelta(minutes=1)
    for one in Release.objects.filter(model=found):
        Release.objects.filter(pk=one.pk).update(created_at=one.created_at - minute)
    for span in ReleaseSpan.objects.filter(model=found):
        ReleaseSpan.objects.filter(pk=span.pk).update(started_at=span.started_at - minute)
    return found


def store(server: Server, model: Model, requests: int = 2000) -> None:
    """Store the samples of the last SECONDS seconds."""
    setting = setting_of(current_document(model))
    usage = traffic(poisson(requests / SECONDS, requests), setting, ServiceTime(4e6, 3e5, spread=0.03)).usage
    start = int(time.time()) - SECONDS
    rows = [("", 0, start + second, encode(Sample({}, PROCESS))) for second in range(SECONDS)]
    rows.append((model.name, 1, start, encode(Sample(usage.pack()))))
    MetricSample.objects.bulk_create(
        MetricSample(server=server, resolution=1, model_name=name, version=version, at=at, data=data)
        for name, version, at, data in rows
    )


def test_rest_answers_with_the_advice_and_its_text(model: Model, server: Server, api: APIClient) -> None:
    store(server, model)
    found = api.get("/api/v1/models/relu/advice").json()
    assert found["reason"] == ""
    advice = found["advice"]
    assert advice["changes"][0]["field"] == "max_queue_delay_microseconds"
    for figure in ("p50_ms", "rows", "busy"):
        assert advice[figure]["low"] <= advice[figure]["value"] <= advice[figure]["high"], figure
    assert advice["p99_ms"]["low"] <= advice["p99_ms"]["value"] <= advice["p99_ms"]["high"] < advice["now"]["p99_ms"]
    assert advice["text"].startswith("# The widest ReLU of the house.")
    assert advice["difference"].startswith("--- now")


def test_the_models_page_shows_the_advice_and_opens_it_in_the_editor(
    model: Model, server: Server, as_person: Callable[..., Client]
) -> None:
    store(server, model)
    operator = as_person("operate")
    assert 'hx-get="/models/relu/advice"' in text_of(operator, "/models/relu/")
    part = operator.get("/models/relu/advice", headers={"HX-Request": "true"}).content.decode()
    assert "max_queue_delay_microseconds" in part
    assert "/models/relu/advice/configuration" in part
    assert "Open in the editor" not in text_of(as_person(), "/models/relu/advice")
    editor = text_of(operator, "/models/relu/advice/configuration")
    assert "This text is a proposal" in editor
    assert 'data-preview="/models/relu/configuration/preview"' in editor
    assert 'value="max_queue_delay_microseconds: 40000 -&gt; ' in editor
    assert current_document(model).text == WAITING, "nothing is applied"


def test_without_advice_the_page_shows_nothing_and_says_why_when_asked(
    model: Model, server: Server, as_person: Callable[..., Client], api: APIClient
) -> None:
    store(server, model, requests=400)
    operator = as_person("operate")
    assert operator.get("/models/relu/advice", headers={"HX-Request": "true"}).content.strip() == b""
    assert "400 of 1,000 requests" in text_of(operator, "/models/relu/advice")
    assert operator.get("/models/relu/advice/configuration").headers["Location"] == "/models/relu/configuration"
    assert api.get("/api/v1/models/relu/advice").json()["advice"] is None


def test_samples_from_before_the_configuration_served_do_not_count(
    model: Model, server: Server, api: APIClient
) -> None:
    store(server, model)
    ReleaseSpan.objects.filter(model=model).update(started_at=timezone.now())
    assert "0 of 1,000 requests" in api.get("/api/v1/models/relu/advice").json()["reason"]


def test_of_several_servers_the_one_that_was_asked_most_in_the_last_two_minutes_is_advised(
    model: Model, server: Server, api: APIClient
) -> None:
    at = {"http_url": "http://far:8000", "grpc_url": "far:8001", "metrics_url": "http://far:8002"}
    far = Server.objects.create(name="far", environment=server.environment, **at)
    serve(model, far)
    ReleaseSpan.objects.filter(server=far).update(started_at=timezone.now() - timedelta(minutes=1))
    store(server, model, requests=400)
    store(far, model)

    def asked(of: Server, ago_s: int, requests: int) -> None:
        data = encode(Sample({"success": requests}))
        place = {"model_name": model.name, "version": 1, "resolution": FINE, "at": int(time.time()) - ago_s}
        MetricSample.objects.create(server=of, data=data, **place)

    asked(server, 60, 400)
    asked(server, 180, 9000)
    asked(far, 60, 2000)
    assert api.get("/api/v1/models/relu/advice").json()["reason"] == ""
    selectors._kept.clear()
    asked(server, 30, 2000)
    assert "400 of 1,000 requests" in api.get("/api/v1/models/relu/advice").json()["reason"]


def test_a_model_that_does_not_serve_gets_no_advice(relu: Version, api: APIClient) -> None:
    assert "does not serve" in api.get("/api/v1/models/relu/advice").json()["reason"]
