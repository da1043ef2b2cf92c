"""A version goes live only if its newest replay passes the model's gate, or if somebody gives a reason."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from rest_framework.test import APIClient

from dashboard.access.authorisation import Actor
from dashboard.captures.services import capture_delete
from dashboard.models import AuditEntry, Capture, Model, Replay, Version
from dashboard.replays.services import replay_gate_set
from dashboard.rollouts.services import rollout_start
from dashboard.shared.exceptions import Conflict
from dashboard.versions.services import aliases_set, release_promote
from tests.dashboard.conftest import serve, text_of
from tests.dashboard.drift.captured import make_capture
from tests.dashboard.replays.conftest import relu_capture

pytestmark = pytest.mark.django_db
Keep = Callable[..., Replay]


@pytest.fixture
def capture(relu: Version) -> Capture:
    return relu_capture(relu.model, 3)


@pytest.fixture
def second(capture: Capture, published: Callable[..., Version], actor: Actor) -> Version:
    """A second version, which is not live, of a model whose gate is a replay of the capture."""
    version = published()
    replay_gate_set(model=version.model, actor=actor, capture=str(capture.pk), most_percent=2.0, most_p99_times=1.5)
    return Version.objects.get(pk=version.pk)


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ({"differ": 3}, r"3 % of the requests \(3 of 100\) differ in its newest replay"),
        ({"failed": 1}, "1 of 100 requests failed in its newest replay"),
        ({"compared": 0}, "no answer could be compared in its newest replay"),
        (
            {"captured": {"64": 100}, "replayed": {"64": 90, "96": 10}},
            "its newest replay has a p99 of 541 µs, 3.98 times the captured 136 µs",
        ),
    ],
)
def test_a_version_that_does_not_pass_is_not_made_live(
    second: Version, capture: Capture, actor: Actor, replayed: Keep, figures: dict[str, Any], why: str
) -> None:
    replayed(capture, second)
    replayed(capture, second, **figures)
    with pytest.raises(Conflict, match=why) as refused:
        release_promote(version=second, actor=actor)
    assert "at most 2 % of the requests differ, none fails, and the p99 is at most 1.5 times" in refused.value.message


def test_a_version_that_passes_is_made_live(second: Version, capture: Capture, actor: Actor, replayed: Keep) -> None:
    replayed(capture, second, differ=2, captured={"64": 100}, replayed={"64": 100})
    release_promote(version=second, actor=actor)


def test_only_a_replay_of_this_capture_tolerance_and_configuration_counts(
    second: Version, capture: Capture, actor: Actor, replayed: Keep
) -> None:
    def refused(words: str) -> None:
        with pytest.raises(Conflict, match=words):
            release_promote(version=second, actor=actor)

    replayed(make_capture(second.model), second)
    Replay.objects.filter(pk=replayed(capture, second).pk).update(relative=0.5)
    Replay.objects.filter(pk=replayed(capture, second).pk).update(state="cancelled")
    refused(
        "the capture was not replayed against version 2 with the tolerance of the gate.*Replay the capture, or give"
    )
    Replay.objects.filter(pk=replayed(capture, second).pk).update(sha256="0")
    refused("with another configuration, not with this one")
    capture_delete(capture=capture, actor=actor)
    refused("the capture of the gate was deleted, so it cannot be replayed")


def test_a_reason_overrides_the_gate_and_is_recorded(second: Version, actor: Actor, api: APIClient) -> None:
    serve(second.model)
    for refused in (
        lambda: rollout_start(model=second.model, actor=actor, candidate=2),
        lambda: aliases_set(model=second.model, actor=actor, aliases={"default": 2}),
    ):
        with pytest.raises(Conflict, match="the capture was not replayed against version 2"):
            refused()
    address = "/api/v1/models/relu/versions/2/make_live"
    assert "was not replayed" in api.post(address, {}, format="json").data["error"]
    answer = api.post(address, {"override": "a fix that cannot wait"}, format="json")
    assert answer.status_code in (200, 201, 202), answer.data
    entry = AuditEntry.objects.get(action="replay_gate.override")
    assert entry.summary == "Overrode the replay gate of relu for version 2: a fix that cannot wait"


def test_the_gate_is_set_shown_and_removed_over_rest_and_on_the_page(
    relu: Version, capture: Capture, api: APIClient, as_person: Callable[..., Client], published: Callable[..., Version]
) -> None:
    address, operator = "/api/v1/models/relu/replay_gate", as_person("operate")
    page = f"/models/relu/captures/{capture.pk}/replays"
    assert api.get(address).data["capture"] is None
    assert "The model has no replay gate" in text_of(operator, page)
    assert operator.post(f"{page}/gate", {"most_percent": "1", "most_p99_times": "2"}).status_code == 302
    found = api.get(address).data
    assert (found["capture"], found["most_percent"], found["most_p99_times"]) == (str(capture.pk), 1.0, 2.0)
    assert "none fails, and the p99 is at most 2 times the captured one" in text_of(operator, page)
    published()
    live = text_of(operator, "/models/relu/versions/2/live")
    assert f'href="{page}?version=2"' in live
    assert "The replay gate is that at most 1 % of the requests differ" in live
    refused = operator.post(f"{page}/gate", {"most_percent": "101"})
    assert (refused.status_code, b'value="101"' in refused.content) == (400, True)
    assert api.put(address, {"capture": str(capture.pk), "most_percent": -1}, format="json").status_code == 400
    assert api.put(address, {"capture": None}, format="json").data["capture"] is None
    assert Model.objects.get().replay_gate == {}


def test_the_pages_begin_show_and_delete_a_replay(
    relu: Version, capture: Capture, as_person: Callable[..., Client], replayed: Keep, unqueued: list[int]
) -> None:
    operator, viewer = as_person("operate"), as_person()
    page = f"/models/relu/captures/{capture.pk}/replays"
    assert f'href="{page}"' in text_of(viewer, f"/models/relu/captures/{capture.pk}")
    refused = operator.post(f"{page}/start", {"version": "1", "absolute": "x"})
    assert (refused.status_code, b'value="x"' in refused.content) == (400, True)
    assert operator.post(f"{page}/start", {"version": "1", "clients": "2"}).status_code == 302
    output = {
        "compared": 100,
        "differ": 3,
        "max_absolute": 1,
        "max_relative": 1,
        "top1": [9, 8],
        "bins": [9, 1, 2, 3, 4, 5],
    }
    reasons = {"500: it holds what a client sent": {"requests": 2, "first": 7}}
    found = replayed(
        capture, relu, outputs={"y": output}, failed=2, reasons=reasons, captured={"64": 9}, replayed={"80": 9}
    )
    shown = text_of(viewer, f"{page}/{found.pk}")
    for words in ("Distributions of the captured", "8 of 9", "Not comparable"):
        assert words in shown
    assert "what a client sent" not in text_of(operator, f"{page}/{found.pk}")
    assert viewer.post(f"{page}/{found.pk}/worst").status_code == 403
    assert b"what a client sent" in operator.post(f"{page}/{found.pk}/worst").content
    assert operator.post(f"{page}/{found.pk}/delete").status_code == 302
    assert [one.state for one in Replay.objects.all()] == ["waiting"]
