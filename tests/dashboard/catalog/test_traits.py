"""What pages read from a configuration; one with mistakes says nothing."""

import pytest

from dashboard.catalog.traits import Traits, traits_of
from repository.config.document import Document


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        ("max_batch_size: 4", Traits()),
        ("nonsense: 1", Traits()),
        ("model_transaction_policy { decoupled: true }", Traits(decoupled=True)),
        ("sequence_batching { }", Traits(sequence=True)),
        ("response_cache { enable: true }", Traits(caches=True)),
    ],
)
def test_a_configuration_tells_how_its_model_is_used(text: str, traits: Traits) -> None:
    assert traits_of(Document.read(text)) == traits


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ('{\\"mode\\": \\"pinned\\"}', ""),
        ('{\\"mode\\": \\"on_demand\\"}', "on demand, put to sleep after 300 s"),
        ('{\\"mode\\": \\"on_demand\\", \\"idle_seconds\\": 2.5}', "on demand, put to sleep after 2.5 s"),
        ('{\\"mode\\": \\"evictable\\"}', "while there is room"),
        ("[]", ""),
        ("no JSON", ""),
    ],
)
def test_residency_is_said_in_words(value: str, words: str) -> None:
    text = f'parameters {{ key: "slipway.residency" value {{ string_value: "{value}" }} }}'
    assert traits_of(Document.read(text)).residency == words
