"""How far a publication and a step of a rollout travel: texts that are parsed, and hops from file to file."""

import pytest

from benchmarks import walks
from dashboard.access.authorisation import Actor
from dashboard.models import Server

pytestmark = pytest.mark.django_db

PUBLICATION_PARSES, PUBLICATION_HOPS = 3, 205  # four of them ask whether a bucket keeps the repository
STEP_PARSES, STEP_HOPS = 1, 80


@pytest.fixture(autouse=True)
def before(server: Server, actor: Actor, unqueued: list[int]) -> None:
    """What is imported and made once is there."""
    walks.published("before", actor)
    walks.stepped("before", actor)


def test_a_publication_and_a_step_parse_a_text_once_and_hop_no_further_than_they_may(actor: Actor) -> None:
    found = walks.published("relu", actor)
    for number in (1, 2):
        uploaded, published = found[f"version {number} uploaded"], found[f"version {number} published"]
        assert uploaded.parses + published.parses <= PUBLICATION_PARSES
        assert published.hops < PUBLICATION_HOPS, published.pairs
    step = walks.stepped("relu", actor)
    assert step.parses <= STEP_PARSES
    assert step.hops < STEP_HOPS, step.pairs
