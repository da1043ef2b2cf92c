"""GET /api/v1/web-metrics shows Prometheus what a web process does."""

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient


def samples(page: str) -> dict[tuple[str, ...], float]:
    found = [one for family in text_string_to_metric_families(page) for one in family.samples]
    return {(one.name.removeprefix("slipway_web_"), *one.labels.values()): one.value for one in found}


@pytest.mark.django_db
def test_requests_are_counted_by_route_method_and_status(api: APIClient) -> None:
    before = samples(api.get("/api/v1/web-metrics").content.decode())
    for name in ("a", "b"):
        assert api.get(f"/api/v1/models/{name}").status_code == 404
    assert api.generic("FOO", "/api/v1/models").status_code == 405
    assert Client().get("/nothing-is-here-7").status_code == 404
    answer = api.get("/api/v1/web-metrics", HTTP_ACCEPT="text/plain;version=0.0.4")
    assert answer["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    after = samples(answer.content.decode())
    grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert grown["requests_total", "api_model", "GET", "404"] == 2
    assert grown["requests_total", "api_models", "other", "405"] == 1
    assert grown["requests_total", "api_web_metrics", "GET", "200"] == 1
    assert grown["request_duration_seconds_count", "api_model"] == 2
    assert grown["request_duration_seconds_bucket", "api_model", "+Inf"] == 2
    assert grown["request_duration_seconds_sum", "api_model"] > 0
    assert after["requests_under_way",] == 1
    assert after["process_resident_memory_bytes",] > 10 << 20
    assert "nothing-is-here" not in answer.content.decode()


@pytest.mark.django_db
def test_the_figures_need_a_token() -> None:
    assert APIClient().get("/api/v1/web-metrics", HTTP_ACCEPT="text/plain").status_code == 401
