"""How far a publication and a step of a rollout travel: texts that are parsed, and hops from file to file."""

import pytest

from benchmarks import walks
from dashboard.access.authorisation import Actor
from dashboard.models import Server
from repository.config import document, model_config
from repository.config.document import Document

pytestmark = pytest.mark.django_db

PUBLICATION_PARSES, PUBLICATION_HOPS = 3, 200
STEP_PARSES, STEP_HOPS = 1, 80
FIRST_STEP_PARSES = 2  # the present text, and the edited one


class FirstWalk(walks.Walk):
    """A walk in a process that has read no configuration yet."""

    def begin(self) -> None:
        document.kept.cache_clear()
        super().begin()


@pytest.fixture(autouse=True)
def before(server: Server, actor: Actor, unqueued: list[int]) -> None:
    """What is imported and made once is there."""
    walks.published("before", actor)
    walks.stepped("before", actor)
    document.kept.cache_clear()


def test_a_publication_and_a_step_parse_a_text_once_and_hop_no_further_than_they_may(actor: Actor) -> None:
    found = walks.published("relu", actor)
    for number in (1, 2):
        uploaded, published = found[f"version {number} uploaded"], found[f"version {number} published"]
        assert uploaded.parses + published.parses <= PUBLICATION_PARSES
        assert published.hops < PUBLICATION_HOPS, published.pairs
    step = walks.stepped("relu", actor)
    assert step.parses <= STEP_PARSES
    assert step.hops < STEP_HOPS, step.pairs


def test_a_process_that_has_read_nothing_yet_parses_little_more(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walks, "Walk", FirstWalk)
    found = walks.published("relu", actor)
    for number in (1, 2):
        uploaded, published = found[f"version {number} uploaded"], found[f"version {number} published"]
        assert uploaded.parses + published.parses <= PUBLICATION_PARSES
    assert walks.stepped("relu", actor).parses <= FIRST_STEP_PARSES


def test_nobody_changes_the_message_of_a_document_that_is_kept(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    given, kept = set[Document](), document.kept
    monkeypatch.setattr(document, "kept", lambda text: given.add(found := kept(text)) or found)
    walks.published("relu", actor)
    walks.stepped("relu", actor)
    sound = [one for one in given if not one.mistake]
    assert len(sound) > 2
    for one in sound:
        assert one.message == model_config.parse(one.text)
