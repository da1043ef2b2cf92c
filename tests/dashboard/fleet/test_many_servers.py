"""The pages and REST of an environment with 200 servers show some at a time, and compare them with all."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from dashboard.metrics.samples import FINE, FINEST, Sample, encode
from dashboard.models import MetricSample, ModelState, Server, ServerEnvironment, ServerState
from tests.dashboard.feeds import PROCESS, usage

pytestmark = pytest.mark.django_db

SERVERS, MODELS = 200, 26


@pytest.fixture
def many(db: None) -> None:
    """Servers with models, and with requests in the last minutes: server N had N requests in each span."""
    production = ServerEnvironment.objects.get(name="production")
    address = {"http_url": "http://10.0.0.1", "metrics_url": "http://10.0.0.1", "grpc_url": "10.0.0.1"}
    rows = [Server(name=f"s-{n:03}", environment=production, **address) for n in range(SERVERS)]
    servers = Server.objects.bulk_create(rows)
    ServerState.objects.bulk_create(ServerState(server=one, state="ready") for one in servers)
    ModelState.objects.bulk_create(
        ModelState(server=one, model_name=f"m-{n}", version=1, state="READY") for one in servers for n in range(MODELS)
    )
    now = int(time.time())
    spans = [(FINE, now - now % FINE - n * FINE) for n in range(1, 9)]
    spans += [(60, now - now % 60 - n * 60) for n in range(1, 16)] + [(FINEST, now - 2)]
    MetricSample.objects.bulk_create(
        MetricSample(server=one, resolution=resolution, at=at, data=encode(Sample(usage(n, 1000).pack(), PROCESS)))
        for n, one in enumerate(servers)
        for resolution, at in spans
    )


def cost(ask: Callable[[], Any]) -> tuple[Any, int]:
    """Return an answer and the number of its queries."""
    ask()  # what is kept from then on
    with CaptureQueriesContext(connection) as queries:
        began = time.process_time()
        answer = ask()
    print(f"{1000 * (time.process_time() - began):.0f} ms of CPU, {len(queries)} queries, {len(answer.content)} bytes")
    assert answer.status_code == 200
    return answer, len(queries)


def test_the_list_of_servers_has_pages(many: None, as_person: Callable[..., Client]) -> None:
    client = as_person()
    first, queries = cost(lambda: client.get("/servers/"))
    shown = re.findall(r'data-server="(s-\d+)"', first.content.decode())
    assert shown == [f"s-{n:03}" for n in range(20)]
    assert queries < 60
    second = client.get("/servers/?page=2").content.decode()
    assert 'data-server="s-020"' in second
    assert 'hx-get="/servers/?page=2"' in second, "what refreshes itself stays on its page"


def test_the_page_of_an_environment_compares_some_servers_with_all(
    many: None, as_person: Callable[..., Client]
) -> None:
    client = as_person()
    first, queries = cost(lambda: client.get("/environments/production/"))
    text = first.content.decode()
    assert len(re.findall(r'<a href="/servers/s-\d+/">', text)) == 50
    assert '<span class="hint">200</span>' in text
    assert queries < 40
    last = client.get("/environments/production/?page=4").content.decode()
    assert "2.00 ×" in last, "the last server had twice the mean of all, not of its page"


def test_rest_lists_some_servers_at_a_time(many: None, api: APIClient) -> None:
    answer, queries = cost(lambda: api.get("/api/v1/environments/production/servers?page_size=50"))
    assert answer.json()["count"] == SERVERS
    assert len(answer.json()["results"]) == 50
    assert queries < 70  # of which 50 count the versions of one server each
    cost(lambda: api.get("/api/v1/environments"))
    cost(lambda: api.get("/api/v1/servers"))
    cost(lambda: api.get("/api/v1/metrics"))
