"""Two people edit one configuration on its page: the second sees both texts, loses nothing, and can go on."""

from collections.abc import Callable

import pytest
from django.test import Client

from dashboard.access.authorisation import Actor
from dashboard.configuration.services import config_apply
from dashboard.models import Model, ReleaseSpan, Version
from dashboard.releases.selectors import current_document, newest_release
from dashboard.servers.services import server_ensure_local
from repository.config.document import Document
from tests.dashboard.conftest import CONFIG, text_of

pytestmark = pytest.mark.django_db
PAGE = "/models/relu/configuration"
THEIRS = CONFIG + "version_policy { all { } }\n"
MINE = CONFIG.replace("max_batch_size: 8", "max_batch_size: 16 # mine")


@pytest.fixture
def model(published: Callable[..., Version]) -> Model:
    return published(load=True).model


@pytest.fixture
def base(model: Model, actor: Actor) -> int:
    """The number of the release that I began with; somebody has made another one since."""
    before = newest_release(model)
    assert before is not None
    config_apply(model=model, document=Document.read(THEIRS), actor=actor)
    return before.number


@pytest.fixture
def me(as_person: Callable[..., Client]) -> Client:
    return as_person("operate")


def post(client: Client, text: str, base: int) -> tuple[int, str]:
    answer = client.post(PAGE, {"text": text, "base_release": base, "summary": "Larger batches"})
    return answer.status_code, answer.content.decode()


def test_the_slower_of_two_editors_sees_both_changes_and_keeps_their_text(model: Model, me: Client, base: int) -> None:
    status, page = post(me, MINE, base)
    assert status == 409
    assert "came while you edited" in page
    assert "+version_policy { all { } }" in page
    assert "+max_batch_size: 16 # mine" in page
    assert "max_batch_size: 16 # mine\n" in page[page.index('id="config-text"') :].split("</textarea>")[0]
    assert 'value="Larger batches"' in page
    assert current_document(model).text == THEIRS
    # Going on from here is going on from the newest release: nobody is asked twice about one change.
    assert f'name="base_release" value="{base + 1}"' in page


def test_changes_that_do_not_touch_can_be_merged(model: Model, me: Client, base: int) -> None:
    _, page = post(me, MINE, base)
    merged = page[page.index('id="conflict-merged"') :].split("</pre>")[0]
    assert "max_batch_size: 16 # mine" in merged
    assert "version_policy { all { } }" in merged
    assert "Merge both" in page
    assert "Merge both" not in post(me, CONFIG + "version_policy { latest { num_versions: 2 } }\n", base)[1]


def test_after_a_text_with_mistakes_the_page_still_notices_what_others_did(model: Model, me: Client, base: int) -> None:
    """The text is refused for its mistakes first; that it is outdated is not forgotten by that."""
    status, page = post(me, MINE + "max_batch", base)
    assert status == 400
    assert f'name="base_release" value="{base}"' in page
    assert post(me, MINE, base)[0] == 409


def test_a_viewer_gets_the_text_and_no_form(model: Model, as_person: Callable[..., Client]) -> None:
    page = text_of(as_person(), PAGE)
    assert "The widest ReLU of the house" in page
    assert "<textarea" not in page
    assert "<select" not in page
    assert "config-review" not in page
    assert "<textarea" in text_of(as_person("operate"), PAGE)


def test_the_page_says_what_serves_where_that_is_not_what_is_wanted(model: Model, me: Client, base: int) -> None:
    server = server_ensure_local()
    ReleaseSpan.objects.create(release=model.releases.get(number=base), model=model, server=server)
    assert "is wanted" not in text_of(me, PAGE), "clients meet the same with the text that came"
    me.post(PAGE, {"text": MINE, "base_release": base + 1})
    assert f"Release {base} serves, release {base + 2} is wanted." in text_of(me, PAGE)
