"""The pages of versions: making one live with what that changes, names, retention, why a version is kept."""

from collections.abc import Callable

import pytest
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.catalog.services import model_unload
from dashboard.models import Model, ModelState, Server, Version
from dashboard.releases.selectors import current_document, newest_release, wanted_versions
from dashboard.versions.pages import on_most_servers
from dashboard.versions.services import aliases_set
from tests.dashboard.conftest import CONFIG, serve, text_of

pytestmark = pytest.mark.django_db
Publish = Callable[..., Version]


@pytest.fixture
def two(published: Publish) -> Model:
    """Version 1 is live, version 2 is not."""
    first = published(load=True)
    serve(first.model)
    published()
    return first.model


def test_making_a_version_live_says_first_what_changes(two: Model, as_person: Callable[..., Client]) -> None:
    operator = as_person("operate")
    page = text_of(operator, "/models/relu/versions/2/live")
    assert "Nothing changes in what requests send and answers have." in page
    assert '<span class="add">+' in page
    answer = operator.post("/models/relu/versions/2/live", {"config": "present"})
    assert answer["Location"] == "/models/relu/releases/"
    assert wanted_versions(two) == [2]


def test_a_version_of_another_signature_is_offered_with_the_configuration_that_fits_it(
    two: Model, as_person: Callable[..., Client]
) -> None:
    other = CONFIG.replace('"y"', '"z"')
    signature = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "z", "datatype": "FP32", "shape": [-1, 4]}],
    }
    Version.objects.filter(number=2).update(signature=signature, config=other)
    operator = as_person("operate")
    page = text_of(operator, "/models/relu/versions/2/live").replace("&#x27;", "'")
    assert "Output 'y' is gone: requests that ask for it are refused." in page
    assert 'value="fitting" checked' in page
    operator.post("/models/relu/versions/2/live", {"config": "fitting"})
    assert '"z"' in current_document(two).text
    assert wanted_versions(two) == [2]


def test_the_signature_of_a_model_is_that_of_the_version_that_answers(
    two: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    signature = {"inputs": [], "outputs": [{"name": "z", "datatype": "FP32", "shape": [-1, 4]}]}
    Version.objects.filter(number=1).update(
        signature={**signature, "outputs": [{**signature["outputs"][0], "name": "y"}]}
    )
    Version.objects.filter(number=2).update(signature=signature)
    aliases_set(model=two, aliases={"default": 1, "next": 2}, actor=actor)
    serve(two)
    local = Server.objects.get()
    for number in (1, 2):
        ModelState.objects.create(server=local, model_name=two.name, version=number, state="READY")
    page = text_of(as_person(), "/models/relu/")
    assert "version 1, which answers requests that name no version" in page
    assert '<span class="mono">y</span>' in page
    assert '<span class="mono">z</span>' not in page
    model_unload(model=two, actor=actor)
    ModelState.objects.all().delete()
    assert "version 2, the newest; none is served" in text_of(as_person(), "/models/relu/")


def test_names_stay_where_they_are_whichever_configuration_is_chosen(
    two: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    """The text that fits a version is of another time, when versions had other names, or none."""
    aliases_set(model=two, aliases={"champion": 1}, actor=actor)
    Version.objects.filter(number=2).update(config=CONFIG.replace("max_batch_size: 8", "max_batch_size: 4"))
    as_person("operate").post("/models/relu/versions/2/live", {"config": "fitting"})
    newest = newest_release(two)
    assert newest is not None
    assert "max_batch_size: 4" in newest.text
    assert newest.aliases["champion"] == 1
    assert newest.versions == [1, 2]


def test_a_viewer_makes_nothing_live(two: Model, as_person: Callable[..., Client]) -> None:
    assert as_person().get("/models/relu/versions/2/live").status_code == 403
    assert "/versions/2/live" not in text_of(as_person(), "/models/relu/versions")


def test_names_are_given_moved_and_taken_away(two: Model, as_person: Callable[..., Client]) -> None:
    operator = as_person("operate")
    operator.post("/models/relu/aliases", {"alias": ["champion", "candidate"], "number": ["1", "2"]})
    page = text_of(operator, "/models/relu/versions")
    assert '<span class="tag">champion</span>' in page
    operator.post("/models/relu/aliases", {"alias": ["champion", "candidate", ""], "number": ["2", "", ""]})
    newest = newest_release(two)
    assert newest is not None
    assert newest.aliases["champion"] == 2
    assert "candidate" not in newest.aliases


@pytest.mark.parametrize("alias", ["7", "Über"])
def test_a_name_that_cannot_be_one_is_refused_and_kept_in_the_form(
    two: Model, as_person: Callable[..., Client], alias: str
) -> None:
    operator = as_person("operate")
    answer = operator.post("/models/relu/aliases", {"alias": [alias], "number": ["1"]})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert f'value="{alias}"' in page
    assert 'id="aliases-error"' in page
    assert page.split('id="aliases-error">')[1].startswith(f"&#x27;{alias}&#x27; cannot name a version")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({"alias": ["champion"], "number": [""]}, "Choose the version"),
        ({"alias": ["champion"], "number": ["9" * 5000]}, "whole number"),
        ({"alias": ["champion", "champion"], "number": ["1", "2"]}, "is in two rows"),
    ],
)
def test_a_row_of_names_that_means_nothing_is_refused_and_not_passed_over(
    two: Model, as_person: Callable[..., Client], rows: dict[str, list[str]], said: str
) -> None:
    answer = as_person("operate").post("/models/relu/aliases", rows)
    page = answer.content.decode()
    assert answer.status_code == 400
    assert said in page.split('id="aliases-error">')[1].split("<")[0]
    assert page.count('value="champion"') == len(rows["alias"])


def test_names_that_somebody_moved_meanwhile_are_shown_as_both_have_them(
    two: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    operator = as_person("operate")
    base = aliases_set(model=two, aliases={"champion": 1}, actor=actor).number
    aliases_set(model=two, aliases={"champion": 2, "theirs": 2}, actor=actor)
    rows = {"alias": ["champion", "mine"], "number": ["", "1"], "base_release": base}
    answer = operator.post("/models/relu/aliases", rows)
    page = answer.content.decode()
    assert answer.status_code == 409
    assert 'value="theirs"' in page
    assert 'value="mine"' in page
    newest = newest_release(two)
    assert newest is not None
    assert f'name="base_release" value="{newest.number}"' in page


def test_a_version_is_not_made_live_over_a_release_that_was_not_looked_at(
    two: Model, actor: Actor, as_person: Callable[..., Client]
) -> None:
    operator = as_person("operate")
    page = text_of(operator, "/models/relu/versions/2/live")
    base = page.split('name="base_release" value="')[1].split('"')[0]
    made = aliases_set(model=two, aliases={"champion": 1}, actor=actor)
    answer = operator.post("/models/relu/versions/2/live", {"config": "present", "base_release": base})
    assert answer["Location"] == "/models/relu/versions/2/live"
    assert newest_release(two) == made
    assert f"Release {made.number} came meanwhile." in text_of(operator, "/models/relu/versions/2/live")


def test_the_page_says_why_a_version_is_kept(two: Model, actor: Actor, as_person: Callable[..., Client]) -> None:
    aliases_set(model=two, aliases={"champion": 2}, actor=actor)
    page = text_of(as_person("operate"), "/models/relu/versions").replace("&#x27;", "'")
    assert "Version 1 of 'relu' is live" in page
    assert "/versions/2/archive" not in page


def test_retention_is_set_and_says_what_it_would_archive(two: Model, as_person: Callable[..., Client]) -> None:
    operator = as_person("operate")
    operator.post("/models/relu/retention", {"count": "1", "days": ""})
    two.refresh_from_db()
    assert two.retention == {"count": 1}
    assert "Nothing is to be archived now." in text_of(operator, "/models/relu/versions")
    operator.post("/models/relu/retention", {"count": "", "days": ""})
    two.refresh_from_db()
    assert two.retention == {}


@pytest.mark.parametrize("count", ["many", "0", "-1", "9" * 5000])
def test_a_retention_that_is_no_number_is_refused_and_kept_in_the_form(
    two: Model, as_person: Callable[..., Client], count: str
) -> None:
    answer = as_person("operate").post("/models/relu/retention", {"count": count, "days": "3"})
    page = answer.content.decode()
    assert answer.status_code == 400
    assert f'value="{count}"' in page
    assert 'id="retention-error"' in page
    two.refresh_from_db()
    assert two.retention == {}


def test_a_version_has_the_state_that_most_servers_tell() -> None:
    told = [(1, "READY"), (1, "UNAVAILABLE"), (1, "READY"), (2, "LOADING")]
    found = on_most_servers(ModelState(version=number, state=state) for number, state in told)
    assert {number: row.state for number, row in found.items()} == {1: "READY", 2: "LOADING"}
