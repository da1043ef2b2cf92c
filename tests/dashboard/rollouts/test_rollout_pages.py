"""The pages of rollouts: what changed last and how to undo it, how one stands, the form, its end, what differed."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from dashboard.access.authorisation import SYSTEM, Actor
from dashboard.metrics.feed import FeedReader
from dashboard.models import Model, Rollout, RolloutFigures, Server, ServerState, Version
from dashboard.rollouts.figures import figures_store, mismatches_store
from dashboard.rollouts.selectors import rollout_now
from dashboard.rollouts.services import rollout_promote, rollout_roll_back, rollout_start
from dashboard.servers.messages import HelloEvent
from dashboard.versions.services import version_annotate
from repository.core.histogram import BOUNDS_US
from tests.dashboard.conftest import text_of
from tests.dashboard.rollouts.conftest import served
from tests.dashboard.rollouts.reports import guardrail, latency, mismatch, rollout_report, shadow_report

pytestmark = pytest.mark.django_db
RELEASES = "/models/relu/releases/"


def started(model: Model, server: Server, actor: Actor, **more: Any) -> Rollout:
    rollout = rollout_start(model=model, actor=actor, candidate=2, **more)
    served(model, server)
    return rollout


def figures(rollout: Rollout, server: Server, **more: Any) -> None:
    figures_store(rollout=rollout, server=server, report=rollout_report(rollout, **more), instance="one")


@pytest.fixture
def canary(model: Model, server: Server, actor: Actor) -> Rollout:
    return started(model, server, actor)


ODD_NUMBERS: tuple[Any, ...] = (
    -1,
    1,
    1 << 62,
    -(1 << 62),
    1e300,
    -0.5,
    [],
    [1],
    {"9999": 1},
    {"-1": 1},
    {"5": -9},
    None,
)


def changed(value: Any, chance: random.Random) -> Any:
    """A word with another number, or list or histogram of them, somewhere in it."""
    inside = [key for key in value if not isinstance(value[key], str)] if isinstance(value, dict) else []
    if inside and chance.random() < 0.95:
        key = chance.choice(inside)
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        return [changed(value[0], chance), *value[1:]]
    return chance.choice(ODD_NUMBERS)


def test_the_pages_are_shown_for_any_counts_of_a_server(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    """What no server can have counted is not kept; anything else can be reckoned with."""
    client, chance, kept = as_person(), random.Random(3), 0
    window = {"seconds": 60.0, "requests": 400, "errors": 3, "latency": latency(397, 1000)}
    word: Any = rollout_report(canary, stable=4000, candidate=400, errors=3, shadow=shadow_report())
    word["arms"]["candidate"]["window"] = window
    word["shadow"]["trouble"] = {"reason": "no memory", "at": 1.8e9}
    for _ in range(120):
        reader = FeedReader()
        reader.read(HelloEvent({"server_id": "s", "instance": "i", "started": 1.0, "bounds_us": [*BOUNDS_US]}))
        part = chance.choice([key for key in word if not isinstance(word[key], str)])
        reader.keep_report({**word, part: changed(word[part], chance)} if kept else word)
        if canary.name in reader.traffic:
            kept += 1
            figures_store(rollout=canary, server=server, report=reader.traffic[canary.name], instance=f"{kept}")
            RolloutFigures.objects.update(earlier={})
            for place in (
                RELEASES,
                f"/models/relu/rollouts/{canary.name}/",
                f"/api/v1/models/relu/rollouts/{canary.name}",
            ):
                assert client.get(place, follow=True).status_code == 200, reader.traffic
    assert kept > 20


# -- how it stands -------------------------------------------------------------------------------------------------------
def test_the_page_of_releases_says_what_changed_last_and_undoes_it(
    canary: Rollout, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate", name="otto")
    page = text_of(client, RELEASES)
    top = page[page.index("What changed last") :][:1600]
    assert f"Rollout {canary.name}: 5 % of requests to version 2." in top
    assert "by olga" in top
    assert "Roll back to version 1" in top
    assert "Version 1 answers everything again immediately." in top
    answer = client.post(f"/models/relu/rollouts/{canary.name}/abort", {"next": RELEASES}, follow=True)
    assert "Version 1 answers everything again." in answer.content.decode()
    canary.refresh_from_db()
    assert (canary.state, canary.ended_by_name) == ("aborted", "otto")


def test_one_page_lists_the_rollouts_of_all_models_with_their_ways_back(
    canary: Rollout, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate")
    page = text_of(client, "/rollouts/")
    assert "5 % of requests go to version 2; step 1 of 4." in page
    assert "relu: Roll back to version 1?" in page
    assert "Roll back" not in text_of(as_person(), "/rollouts/")
    assert 'href="/rollouts/"' in text_of(client, "/")
    client.post(f"/models/relu/rollouts/{canary.name}/abort", {"next": "/rollouts/"})
    page = text_of(client, "/rollouts/")
    assert page.index("No rollout is under way") < page.index("Ended") < page.index("Aborted by")


def test_many_steps_stand_in_the_place_of_few(
    model: Model, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    rollout = started(model, server, actor, plan={"steps": [{"weight": 2.5 * step} for step in range(1, 41)]})
    Rollout.objects.filter(pk=rollout.pk).update(step=12)
    ladder = re.findall(r'class="ladder-weight num">(.*?)</span>', text_of(as_person(), RELEASES))
    assert ladder == ["⋯", "30 %", "32.5 %", "35 %", "37.5 %", "⋯", "100 %"]


def test_both_arms_and_each_guardrail_stand_side_by_side(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    lines = [guardrail(), guardrail(metric="latency"), guardrail("waiting", "latency", 40)]
    figures(canary, server, stable=950, candidate=50, errors=1, guardrails=lines)
    page = text_of(as_person(), RELEASES)
    rows = re.findall(r"<tr><th scope=\"row\">(\w+).*?</tr>", page)
    assert rows == ["Requests", "Errors", "p50", "p99"]
    assert re.search(r"950<small>95 %</small>.*50<small>5 %</small>", page)
    assert "Holds" in page
    assert "candidate <b>0.2 %</b>" in page
    assert "limit 1.1 %" in page
    assert "40 of 200 requests to the candidate in 5 min" in page
    assert 'aria-current="step"' in page
    assert "the next one waits" not in page  # its time is not over
    assert "<button" not in page[page.index('id="rollout"') : page.index("</section>", page.index('id="rollout"'))]


def test_the_latest_figures_are_those_of_the_window_that_guardrails_look_at(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    word = rollout_report(canary, stable=9000, candidate=1000, errors=500)
    for name, errors in (("stable", 1), ("candidate", 2)):
        window = {"seconds": 42, "requests": 100, "errors": errors, "latency": latency(100 - errors, 7000)}
        word["arms"][name]["window"] = window  # type: ignore[typeddict-item]
    figures_store(rollout=canary, server=server, report=word, instance="one")
    client = as_person()
    page = text_of(client, RELEASES)
    assert re.search(
        r"Errors<span class=\"hint\">last 42 s</span></th>.*?1 %<small>1</small>.*?2 %<small>2</small>", page
    )
    found = client.get(f"/api/v1/models/relu/rollouts/{canary.name}").json()
    assert [arm["requests"] for arm in (*found["arms"], *found["recent"])] == [9000, 1000, 100, 100]
    assert found["recent"][0]["p99"] == pytest.approx(7, rel=0.06)


def test_an_ab_test_says_how_far_both_arms_are_apart_and_what_may_be_chance(
    model: Model, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    test = started(model, server, actor, kind="ab")
    figures(test, server, stable=1000, candidate=1000, errors=50, guardrails=[])
    client = as_person()
    page = text_of(client, RELEASES)
    assert re.search(r'\+5 points<small class="hint">\+3.\d+ points to \+6.\d+ points</small>', page)
    assert re.search(r'\+[01]\.?\d* ms<small class="hint">', page)
    answer = client.get(f"/api/v1/models/relu/rollouts/{test.name}").json()["differences"]
    assert answer["error_share"]["value"] == pytest.approx(0.05)
    assert answer["error_share"]["low"] < 0.05 < answer["error_share"]["high"]
    lines = [guardrail("waiting"), guardrail()]
    figures(test, server, stable=1000, candidate=1000, errors=1, guardrails=lines)
    assert "It stays until somebody promotes the candidate" in text_of(client, RELEASES), "no step waits"
    assert "points: may be chance" in text_of(client, RELEASES)


def test_a_page_that_is_old_does_not_take_two_steps(canary: Rollout, as_person: Callable[..., Client]) -> None:
    client = as_person("operate")
    assert "Go on to 25 % of requests" in text_of(client, RELEASES)
    advance = f"/models/relu/rollouts/{canary.name}/advance"
    said = [client.post(advance, {"step": "0"}, follow=True).content.decode() for _ in range(2)]
    assert "25 % of requests go to version 2." in said[0]
    assert "look at it again" in said[1]
    canary.refresh_from_db()
    assert canary.step == 1


def test_pause_resume_promote_keep_and_unload_are_buttons(canary: Rollout, as_person: Callable[..., Client]) -> None:
    client, at = as_person("operate"), f"/models/relu/rollouts/{canary.name}"
    for act, given, state, next_button in (
        ("pause", {}, "paused", "Resume"),
        ("resume", {}, "running", "Pause"),
        ("promote", {"step": "0"}, "holding", "Unload now"),
        ("keep-old", {"days": "30"}, "holding", "stays loaded for 30 days from now"),
        ("keep-old", {"days": "0"}, "holding", "Expected a number of days above 0"),
        ("unload-old", {}, "done", "Start another"),
    ):
        page = client.post(f"{at}/{act}", {**given, "next": f"{at}/"}, follow=True).content.decode()
        canary.refresh_from_db()
        assert canary.state == state, act
        assert next_button in page, act
    page = text_of(client, f"{at}/")
    assert page.index("Paused rollout") < page.index("Resumed rollout") < page.index("Promoted version 2")
    assert "Version 1 was unloaded" in page


def test_a_viewer_can_change_nothing(canary: Rollout, as_person: Callable[..., Client]) -> None:
    client, at = as_person(), f"/models/relu/rollouts/{canary.name}"
    assert "Roll back" not in text_of(client, RELEASES)
    assert "Roll back" not in text_of(client, f"{at}/")
    for act in ("advance", "pause", "resume", "promote", "abort", "keep-old", "unload-old", "unlike/forget"):
        assert client.post(f"{at}/{act}").status_code == 403, act
    assert client.get("/models/relu/rollouts/new").status_code == 403
    assert client.get(f"{at}/chart").json()["steps"][0]["text"].startswith(f"relu: Rollout {canary.name}")


def test_a_server_that_was_replaced_answers_again_by_one_button(
    model: Model, server: Server, actor: Actor, data_folder: Path, settings: Any, as_person: Callable[..., Client]
) -> None:
    listed = "http://other:8000"
    settings.TRAFFIC_REMOTES = data_folder / "remotes.json"
    settings.TRAFFIC_REMOTES.write_text(f'{{"{listed}": {{}}}}')
    other = {"url": listed, "protocol": "v2"}
    rollout = started(model, server, actor, stable=other)
    rollout_promote(rollout=rollout, actor=actor)
    served(model, server)
    client = as_person("operate")
    page = text_of(client, RELEASES)
    assert f"The model at {listed} answers everything again immediately; version 2 stays in its shadow." in page
    assert "Roll back to the other server" in page
    client.post(f"/models/relu/rollouts/{rollout.name}/return", {"next": RELEASES})
    back = rollout_now(model)
    assert back is not None
    assert (back.kind, back.stable, back.candidate) == ("shadow", other, 2)


def test_charts_are_of_all_servers_or_of_one_that_is_named(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    other = Server.objects.create(name="other", http_url="http://127.0.0.1:2", grpc_url="", metrics_url="")
    for one in (server, other):
        figures(canary, one, stable=9, candidate=1)
    at = f"/models/relu/rollouts/{canary.name}/chart"
    answer = as_person().get(at).json()
    assert (answer["server"], answer["servers"]) == ("", ["local", "other"])
    assert as_person().get(f"{at}?server=other").json()["server"] == "other"
    assert as_person().get(f"{at}?server=none").status_code == 404


def test_a_rollback_is_shown_with_its_reason_and_the_version_that_answers(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    figures(canary, server, stable=900, candidate=100, errors=20, guardrails=[guardrail("breached")])
    rollout_roll_back(rollout=canary, reason="20 % of version 2's answers were errors", actor=SYSTEM)
    served(canary.model, server)
    for address in (RELEASES, f"/models/relu/rollouts/{canary.name}/"):
        page = text_of(as_person("operate"), address).replace("&#x27;", "'")
        assert "20 % of version 2's answers were errors." in page
        assert "Version 1 answers everything. Version 2 was taken out: 20 % of version 2's answers were errors." in page
        assert "Nothing has to be undone." in page
        assert "ended here" in page
        assert "Go on to" not in page


def test_the_head_says_which_share_goes_where_and_the_list_does_too(
    canary: Rollout, server: Server, actor: Actor, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate")
    assert "5 % of requests go to version 2; step 1 of 4." in text_of(client, "/models/relu/")
    assert "5 % to version 2" in text_of(client, "/models/")
    rollout_promote(rollout=canary, actor=actor)
    served(canary.model, server)
    assert "5 % to version 2" not in text_of(client, "/models/")


# -- starting one ----------------------------------------------------------------------------------------------------------
def form(**changed: Any) -> dict[str, Any]:
    """What a browser sends of the form as it comes."""
    usual = {
        "kind": "canary",
        "candidate": "2",
        "stable": "",
        "share": "50",
        "step_weight": ["5", "25", "50", "100"],
        "step_bake": ["10 min", "10 min", "10 min", "10 min"],
        "guardrail_metric": ["errors", "p50", "p99"],
        "guardrail_limit": ["1", "1.5", "1.5"],
        **{f"guardrail_{name}": ["", "", ""] for name in ("name", "url", "stable", "candidate")},
        "hold_days": "7",
        "sticky": "",
        "sticky_name": "",
        "shadow_share": "",
        "stop_after": "",
        "absolute": "0.0001",
        "relative": "0.001",
        "keep_count": "20",
        "keep_days": "7",
        "min_samples": "200",
        "window_s": "300",
        "alpha": "0.001",
        "do": "start",
    }
    return {**usual, **changed}


def test_the_form_as_it_comes_starts_the_usual_canary(model: Model, as_person: Callable[..., Client]) -> None:
    client = as_person("operate")
    page = text_of(client, "/models/relu/rollouts/new?candidate=2")
    assert '<option value="2" selected>Version 2</option>' in page
    assert '<option value="1"' not in page  # it answers already
    assert page.count('name="step_weight"') == 4
    assert "SLIPWAY_TRAFFIC_REMOTES" in page
    answer = client.post("/models/relu/rollouts/new", form())
    assert (answer.status_code, answer.headers["Location"]) == (302, RELEASES)
    rollout = rollout_now(model)
    assert rollout is not None
    assert [step["weight"] for step in rollout.plan["steps"]] == [5, 25, 50, 100]
    assert rollout.plan["steps"][0]["bake_s"] == 600
    assert rollout.plan["guardrails"] == [
        {"metric": "errors", "margin": 0.01},
        {"metric": "latency", "quantile": 0.5, "ratio": 1.5},
        {"metric": "latency", "quantile": 0.99, "ratio": 1.5},
    ]
    assert rollout.plan["promote"] == "auto"


def test_everything_of_the_form_reaches_the_plan(model: Model, as_person: Callable[..., Client]) -> None:
    changed = form(
        step_weight=["1", "100", ""],
        step_bake=["30 s", "1 h 30 min", "2"],
        by_hand="yes",
        hold_days="0",
        sticky="header",
        sticky_name="x-user",
        shadow_share="20",
        private="yes",
        guardrail_metric=["disagreement", "metric", ""],
        guardrail_limit=["2", "1.2", ""],
        guardrail_name=["", "my_metric", ""],
        **{f"guardrail_{name}": ["", "", ""] for name in ("url", "stable", "candidate")},
    )
    answer = as_person("operate").post("/models/relu/rollouts/new", changed)
    assert answer.status_code == 302, answer.content.decode()
    rollout = rollout_now(model)
    assert rollout is not None
    plan: Any = rollout.plan
    assert plan["steps"] == [{"weight": 1, "bake_s": 30}, {"weight": 100, "bake_s": 5400}]
    assert (plan["promote"], plan["hold_days"], plan["sticky"]) == ("hand", 0, {"header": "x-user"})
    assert plan["shadow"] == {"share": 20, "absolute": 0.0001, "relative": 0.001, "keep": False}
    assert plan["guardrails"] == [
        {"metric": "disagreement", "limit": 0.02},
        {"metric": "prometheus", "name": "my_metric", "ratio": 1.2},
    ]


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"candidate": ""}, "Choose the version that is to be tried."),
    ({"candidate": "0"}, "Choose the version that is to be tried."),
    ({"candidate": "1"}, "Version 1 answers already"),
    ({"min_samples": "9" * 300}, "Write a whole number from 1 to 1,000,000,000, not 1e+300"),
    ({"step_weight": ["50", "25", "5", "100"]}, "put them in order"),
    ({"step_weight": ["five", "25", "50", "100"]}, "&#x27;five&#x27; is not a number"),
    ({"step_weight": ["5", "25", "50", "101"]}, "Write a number from 0 to 100, not 101."),
    ({"step_weight": ["", ""]}, "Write at least one step."),
    ({"step_weight": ["1"] * 51, "step_bake": ["1"] * 51}, "Write at most 50 steps."),
    ({"step_bake": ["soon", "1", "1", "1"]}, "&#x27;soon&#x27; is not a time"),
    ({"step_bake": ["91 d"] * 4}, "Write a time of at most 90 d."),
    ({"kind": "ab", "share": "100"}, "Write a number between 0 and 100: an A/B test needs both arms."),
    ({"hold_days": "-1"}, "Write a number from 0 to 365, not -1."),
    ({"sticky": "header"}, "Write the name of the header"),
    (
        {"sticky": "header", "sticky_name": "x user"},
        "&#x27;x user&#x27; is not the name of a header: write",
    ),
    ({"shadow_share": "200"}, "Write a number from 0 to 100, not 200."),
    ({"shadow_share": "5", "keep_count": "-1"}, "Write a whole number from 1 to 1,000, not -1."),
    ({"shadow_share": "5", "keep_days": "0"}, "Write a number above 0 and at most 3,650, not 0."),
    (
        {"guardrail_metric": ["disagreement", "p99"]},
        "Disagreement is counted where answers are compared: write a share",
    ),
    ({"guardrail_limit": ["", "1.5"]}, "Write a number."),
    ({"guardrail_limit": ["101", "1.5"]}, "Write a number from 0 to 100, not 101."),
    (
        {"guardrail_metric": ["metric", ""], "guardrail_name": ["n" * 5000, ""]},
        "Metric of this server: write a text of 1 to",
    ),
    ({"min_samples": "0.5"}, "Write a whole number from 1 to 1,000,000,000, not 0.5."),
    ({"window_s": "0"}, "Write a number from 1 to 86,400, not 0."),
    ({"alpha": "2"}, "Write a number above 0 and at most 0.5, not 2."),
)


def test_what_is_wrong_stands_beside_its_field_and_what_was_typed_stays(
    model: Model, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate")
    for changed, said in WRONG:
        answer = client.post("/models/relu/rollouts/new", form(**{"relative": "0.123", **changed}))
        page = answer.content.decode()
        assert answer.status_code == 400, changed
        assert said in page, re.findall('class="error-text"[^>]*>([^<]*)', page)
        assert 'class="error-text"' in page
        assert 'value="0.123"' in page
    assert rollout_now(model) is None


def test_kinds_steps_and_guardrails_are_changed_without_javascript(
    model: Model, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate")
    more = client.post("/models/relu/rollouts/new", form(do="add:step", hold_days="3")).content.decode()
    assert more.count('name="step_weight"') == 5
    assert 'value="3"' in more
    more = client.post("/models/relu/rollouts/new", form(do="add:guardrail")).content.decode()
    assert more.count('name="guardrail_metric"') == 4
    shadow = client.post("/models/relu/rollouts/new", form(do="kind:shadow")).content.decode()
    assert "Start the shadow" in shadow
    assert 'name="shadow_share" value="10"' in shadow
    assert shadow.count('name="guardrail_metric"') == 0
    client.post(
        "/models/relu/rollouts/new", form(kind="shadow", shadow_share="10", guardrail_metric=[], stop_after="2 h")
    )
    rollout = rollout_now(model)
    assert rollout is not None
    assert (rollout.kind, rollout.plan["steps"]) == ("shadow", [{"weight": 0, "bake_s": 7200}])


def test_a_model_on_another_server_is_chosen_where_one_is_listed(
    model: Model, as_person: Callable[..., Client], settings: Any, data_folder: Any
) -> None:
    settings.TRAFFIC_REMOTES = data_folder / "remotes.json"
    settings.TRAFFIC_REMOTES.write_text('{"http://other:8000": {"headers": {"Authorization": "Bearer secret"}}}')
    client = as_person("operate")
    page = text_of(client, "/models/relu/rollouts/new")
    assert '<option value="http://other:8000">' in page
    assert "secret" not in page
    given = form(kind="shadow", candidate="remote", shadow_share="10", candidate_protocol="v2", candidate_url="")
    refused = client.post("/models/relu/rollouts/new", given).content.decode()
    assert "Write the address of the other server" in refused
    refused = client.post(
        "/models/relu/rollouts/new", {**given, "candidate_url": "http://other:80001/"}
    ).content.decode()
    assert "Address: write a URL such as" in refused
    refused = client.post("/models/relu/rollouts/new", {**given, "candidate_url": "http://other:8001"}).content.decode()
    assert "is not listed in the file of SLIPWAY_TRAFFIC_REMOTES" in refused
    client.post("/models/relu/rollouts/new", {**given, "candidate_url": "http://other:8000", "candidate_model": "old"})
    rollout = rollout_now(model)
    assert rollout is not None
    assert rollout.candidate == {"url": "http://other:8000", "protocol": "v2", "model": "old"}


def test_it_begins_from_the_row_of_a_version_and_after_publishing(
    model: Model, as_person: Callable[..., Client]
) -> None:
    client = as_person("operate", "upload_data")
    link = 'href="/models/relu/rollouts/new?candidate=2"'
    published = text_of(client, f"/uploads/{model.versions.get(number=2).upload_id}/")
    assert published.index("Make live") < published.index(link) < published.index("Try it")
    assert link in text_of(client, "/models/relu/versions")
    assert 'href="/models/relu/rollouts/new"' in text_of(client, RELEASES)
    assert link not in text_of(as_person(), "/models/relu/versions")


# -- what differed ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def shadow(model: Model, server: Server, actor: Actor) -> Rollout:
    rollout = started(model, server, actor, kind="shadow")
    word = mismatch(1, score=40, at=timezone.now().timestamp())
    word["stable"] = [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 1.0, 2.0]}]
    word["candidate"] = [{"name": "y", "datatype": "FP32", "shape": [1, 3], "data": [0.5, 1.5, 9.0]}]
    mismatches_store(rollout=rollout, server=server, rows=[word])
    return rollout


def test_answers_that_differ_are_listed_and_their_largest_difference_is_marked(
    shadow: Rollout, as_person: Callable[..., Client]
) -> None:
    at, client = f"/models/relu/rollouts/{shadow.name}/unlike", as_person("operate")
    listed = text_of(client, at)
    link = re.search(rf'href="({at}/\d+)"', listed)
    assert link is not None
    page = text_of(client, link[1])
    assert "2 of 3 elements differ" in page
    largest = page[page.index('class="largest"') :]
    assert largest.index("[0, 2]") < largest.index("largest</span>") < largest.index("[0, 1]")
    assert re.search(r">2</td>\s*<td[^>]*>9</td>\s*<td[^>]*>7</td>", largest)
    assert "What was asked" in page
    viewer = as_person()
    assert link[1] not in text_of(viewer, at)
    assert viewer.get(link[1]).status_code == 403
    client.post(f"{at}/forget", {"next": at})
    assert "None so far" in text_of(client, at)
    assert client.get(link[1]).status_code == 404


def test_a_page_says_why_the_candidate_did_not_answer_to_those_who_may_see_inputs(
    shadow: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    trouble = {"reason": "the server at http://b:8080 denies permission", "at": 1.8e9}
    figures(shadow, server, stable=100, candidate=0, shadow={**shadow_report(), "trouble": trouble})
    at = f"/models/relu/rollouts/{shadow.name}/"
    assert "The server at http://b:8080 denies permission." in as_person("operate").get(at).content.decode()
    assert "denies permission" not in as_person("view").get(at).content.decode()


def test_a_shadow_is_stopped_by_its_button(shadow: Rollout, server: Server, as_person: Callable[..., Client]) -> None:
    figures(shadow, server, stable=100, candidate=0, shadow=shadow_report())
    client = as_person("operate")
    page = text_of(client, RELEASES)
    assert "Stop the shadow" in page
    assert re.search(r"Beyond the tolerance</div>.*?12\.5 %", page)
    assert "3 not sent: requests were waiting" in page
    client.post(f"/models/relu/rollouts/{shadow.name}/abort")
    shadow.refresh_from_db()
    assert shadow.state == "done"


def test_the_page_says_when_the_server_is_down(
    canary: Rollout, server: Server, as_person: Callable[..., Client]
) -> None:
    figures(canary, server, stable=90, candidate=10)
    ServerState.objects.update_or_create(server=server, defaults={"state": "down", "last_reason": "it was killed"})
    page = text_of(as_person(), RELEASES)
    stood = page[page.index('id="rollout"') :]
    assert "The figures are those of" in stood
    assert "is-stale" in page


def test_a_model_with_one_version_says_what_a_rollout_needs(
    relu: Version, server: Server, as_person: Callable[..., Client]
) -> None:
    served(relu.model, server)
    client = as_person("operate")
    assert "has no other published version yet" in text_of(client, "/models/relu/rollouts/new")
    refused = client.post("/models/relu/rollouts/new", form(candidate="7"))
    assert refused.status_code == 400
    assert "publish or restore it first" in refused.content.decode()


def test_a_note_is_no_change_of_what_serves(canary: Rollout, actor: Actor, as_person: Callable[..., Client]) -> None:
    version_annotate(version=canary.model.versions.get(number=2), actor=actor, note="looked at")
    page = text_of(as_person(), RELEASES)
    assert "5 % of requests to version 2." in page[page.index("What changed last") :][:400]
