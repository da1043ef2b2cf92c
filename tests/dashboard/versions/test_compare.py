"""Two versions or releases side by side: what differs, how each served, and what is said of a wrong question."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.metrics.samples import Sample, encode
from dashboard.models import MetricSample, Model, ReleaseSpan, Server, Version
from dashboard.releases import life
from dashboard.releases.selectors import current_document, newest_release
from dashboard.servers.services import server_ensure_local
from dashboard.versions.compare import chosen, comparison
from dashboard.versions.services import release_promote
from repository.config.document import Document
from tests.dashboard.conftest import serve, text_of
from tests.dashboard.feeds import PROCESS, usage

pytestmark = pytest.mark.django_db
Publish = Callable[..., Version]


@pytest.fixture
def server(db: None) -> Server:
    return server_ensure_local()


@pytest.fixture
def model(published: Publish, actor: Actor, server: Server) -> Model:
    """Version 1 served, version 2 with another output and batch size serves now: releases 1 and 3; the second
    one published it."""
    first = published(load=True)
    serve(first.model)
    second = published()
    other = {"inputs": second.signature["inputs"], "outputs": [{"name": "z", "datatype": "FP16", "shape": [-1, 4]}]}
    text = second.config.replace('name: "y" data_type: TYPE_FP32', 'name: "z" data_type: TYPE_FP16')
    Version.objects.filter(pk=second.pk).update(signature=other, config=text, size_bytes=5 << 20, sha256="ab" * 32)
    second.refresh_from_db()
    release_promote(
        version=second, actor=actor, document=Document.read(text.replace("max_batch_size: 8", "max_batch_size: 4"))
    )
    serve(first.model)
    return first.model


def sample(server: Server, version: int, at: float, requests: int, each_us: int, fail: int = 0) -> None:
    """Ten seconds of a version's metrics, with the server's own beside them."""
    start = int(at) // 10 * 10
    for name, number in (("relu", version), ("", 0)):
        data = encode(Sample(usage(requests, each_us, fail=fail).pack(), None if name else PROCESS))
        MetricSample.objects.create(server=server, model_name=name, version=number, resolution=10, at=start, data=data)


def test_versions_differ_in_files_tensors_and_configuration(model: Model) -> None:
    found = comparison(model, "v1", "v2")
    assert [side.label for side in found.sides] == ["Version 1", "Version 2"]
    assert [(pair.name, pair.differs) for pair in found.tensors] == [("x", False), ("y", True), ("z", True)]
    assert found.changes == [
        "output 'y' is gone: requests that ask for it are refused",
        "output 'z' is new, FP16 [-1, 4]: answers have it, too",
    ]
    assert {"-max_batch_size: 8", "+max_batch_size: 4"} <= set(found.diff.splitlines())
    assert "slipway.release" not in found.a.text + found.b.text
    assert (found.a.is_live, found.b.is_live) == (False, True)
    assert found.tried_versions == [1, 2]


def test_releases_of_one_version_differ_in_their_configuration_alone(model: Model, actor: Actor) -> None:
    config_apply(
        model=model,
        document=Document.read(current_document(model).text.replace("max_batch_size: 4", "max_batch_size: 2")),
        actor=actor,
    )
    serve(model)
    found = comparison(model, "r3", "r4")
    assert not any(pair.differs for pair in found.tensors)
    assert "-max_batch_size: 4\n+max_batch_size: 2" in found.diff
    assert found.tried_versions == []
    assert [len(side.live) for side in found.sides] == [1, 1]
    assert len(comparison(model, "v1", "v2").b.live) == 1  # it served on when the configuration changed: one stretch


def test_figures_are_those_of_each_version(model: Model, server: Server) -> None:
    now = time.time()
    sample(server, 1, now - 3600, requests=100, each_us=1000)
    sample(server, 2, now - 1800, requests=30, each_us=8000, fail=10)
    sample(server, 2, now - 30 * 3600, requests=7, each_us=8000)  # longer ago than a day
    a, b = (side.figures for side in comparison(model, "v1", "v2").sides)
    assert (a.requests, a.error_share, b.requests, b.error_share) == (100, 0, 40, 0.25)
    assert a.p50 == pytest.approx(1, rel=0.1)
    assert b.p99 == pytest.approx(8, rel=0.1)


def test_figures_of_a_release_are_those_of_the_time_in_which_it_served(
    model: Model, server: Server, actor: Actor
) -> None:
    config_apply(
        model=model,
        document=Document.read(current_document(model).text.replace("max_batch_size: 4", "max_batch_size: 2")),
        actor=actor,
    )
    serve(model)
    now = timezone.now()
    for number, began, ended in ((1, 5, 4), (3, 4, 2), (4, 2, None)):
        times = {"started_at": now - timedelta(hours=began), "ended_at": ended and now - timedelta(hours=ended)}
        ReleaseSpan.objects.filter(release__number=number).update(**times)
    sample(server, 2, time.time() - 3 * 3600, requests=10, each_us=1000)
    sample(server, 2, time.time() - 1 * 3600, requests=3, each_us=1000)
    a, b = (side.figures for side in comparison(model, "r3", "r4").sides)
    assert (a.requests, b.requests) == (10, 3)
    assert comparison(model, "v1", "v2").b.figures.requests == 13


def test_golden_requests_are_shown_as_each_side_was_last_checked(
    model: Model, published: Publish, server: Server, actor: Actor
) -> None:
    release_promote(version=published(), actor=actor)
    wanted = newest_release(model)
    assert wanted is not None
    checks = [{"name": "cat", "version": 3, "passed": False, "detail": "output 'y' is off by 3"}]
    life.began(release=wanted, server=server)
    life.failed(release=wanted, server=server, error="no", steps=[{"step": "golden", "failed": True, "checks": checks}])
    for key in ("v3", f"r{wanted.number}"):
        [pair] = comparison(model, "v2", key).golden
        assert (pair.name, pair.a, pair.differs) == ("cat", None, False)
        assert pair.b == checks[0]


def test_what_is_worth_a_look_is_compared_where_nothing_is_named(model: Model, published: Publish) -> None:
    assert chosen(model, "", "") == ("v2", "v1")
    published()
    assert chosen(model, "", "") == ("v2", "v3")
    assert chosen(model, "v3", "") == ("v3", "v2")
    assert chosen(model, "", "v2")[0] == "v3"


def test_the_page_shows_both_sides_and_what_differs(model: Model, as_person: Callable[..., Client]) -> None:
    page = text_of(as_person(), "/models/relu/compare?a=v1&b=v2")
    assert '<option value="v1" selected>' in page
    assert "5 MiB" in page
    assert '<span class="del">-max_batch_size: 8</span>' in page
    assert "Output &#x27;y&#x27; is gone: requests that ask for it are refused." in page
    assert '<tr class="differs"><th scope="row"><span class="hint">out</span> <span class="mono">z</span>' in page
    assert "/models/relu/playground?versions=1,2" in page
    part = as_person().get("/models/relu/compare?a=v1&b=v2", headers={"HX-Request": "true"}).content.decode()
    assert "Side by side" in part
    assert "<select" not in part


def test_a_release_is_compared_with_what_serves_from_its_page(model: Model, as_person: Callable[..., Client]) -> None:
    page = text_of(as_person(), "/models/relu/releases/1/")
    assert '/models/relu/compare?a=r3&amp;b=r1">Compare with what serves' in page
    assert "Compare with what serves" not in text_of(as_person(), "/models/relu/releases/3/")
    assert "Release 3: Made version 2 live" in text_of(as_person(), "/models/relu/compare?a=r3&b=r1")


def test_one_version_alone_has_nothing_to_compare_with(published: Publish, as_person: Callable[..., Client]) -> None:
    published()
    assert "Nothing to compare yet" in text_of(as_person(), "/models/relu/compare")


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ("a=v1&b=nine", 400, "expected 'b' as a version such as v3 or a release such as r7, not 'nine'"),
        ("a=v1&b=v0", 400, "not 'v0'"),
        ("a=v1&b=v9", 404, "model 'relu' has no version 9"),
        ("a=r9&b=v1", 404, "model 'relu' has no release 9"),
        (f"a=v{'9' * 400}&b=v1", 400, "expected 'a'"),
    ],
)
def test_a_wrong_question_is_refused_with_a_sentence(
    model: Model, as_person: Callable[..., Client], api: APIClient, asked: str, status: int, said: str
) -> None:
    answer = api.get(f"/api/v1/models/relu/compare?{asked}")
    assert answer.status_code == status
    assert said in answer.json()["error"]
    page = text_of(as_person(), f"/models/relu/compare?{asked}", status).replace("&#x27;", "'")
    assert said[1:] in page


def test_over_rest_both_sides_and_their_difference_come(model: Model, api: APIClient) -> None:
    answer = api.get("/api/v1/models/relu/compare?a=v1&b=r3")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["a"]["key"], found["b"]["key"], found["b"]["state"]) == ("v1", "r3", "serving")
    assert found["b"]["file"]["sha256"] == "ab" * 32
    assert found["b"]["live"][0]["until"] is None
    assert found["a"]["figures"] == {"requests": 0, "p50": None, "p99": None, "error_share": None}
    assert found["b"]["signature"]["outputs"] == [{"name": "z", "datatype": "FP16", "shape": [-1, 4]}]
    assert found["changes"][0].startswith("output 'y' is gone")
    assert "+max_batch_size: 4" in found["diff"]
    assert api.get("/api/v1/models/relu/compare").status_code == 400
