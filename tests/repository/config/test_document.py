"""A document: its stamp is the last line of what is written and no part of it, it is read once, and nobody changes it."""

import pytest

from repository.config import model_config
from repository.config.document import Document
from repository.config.release import release_of
from repository.core.errors import InvalidConfig

TEXT = '# Mine.\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
OTHER = 'parameters { key: "other" value { string_value: "1" } }\n'


def stamped(text: str, number: int) -> str:
    return Document.read(text).stamped(number)


def unstamped(text: str) -> str:
    return Document.read(text).text


def same_text(one: str, other: str) -> bool:
    return Document.read(one).same_text(Document.read(other))


@pytest.mark.parametrize("text", [TEXT, "", TEXT + OTHER, OTHER + TEXT, "# no line's end", TEXT + "parameters: []\n"])
def test_a_stamped_text_says_its_release_and_is_otherwise_the_text(text: str) -> None:
    once = stamped(text, 7)
    assert release_of(model_config.parse(once)) == 7
    assert unstamped(once).rstrip("\n") == text.rstrip("\n")
    assert stamped(once, 7) == once
    assert release_of(model_config.parse(stamped(once, 8))) == 8


@pytest.mark.parametrize(
    "written",
    [
        'parameters {\n  key: "slipway.release"\n  value { string_value: "3" }\n}\n',
        'parameters [ { key: "slipway.release" value { string_value: "3" } }, { key: "a" value { string_value: "b" } } ]\n',
        "parameters { key: 'slipway.release' value: { string_value: '3' } } # by hand\n",
    ],
)
def test_a_stamp_that_a_person_wrote_is_found_too(written: str) -> None:
    text = TEXT + written
    plain = unstamped(text)
    assert "slipway.release" not in plain
    assert plain.startswith(TEXT)
    assert release_of(model_config.parse(stamped(text, 9))) == 9


def test_texts_are_the_same_whatever_their_stamps() -> None:
    assert same_text(stamped(TEXT, 1), stamped(TEXT, 2))
    assert same_text(stamped(TEXT, 1), TEXT.rstrip("\n"))
    assert not same_text(stamped(TEXT, 1), stamped(TEXT + "# more\n", 1))


def test_a_text_with_mistakes_is_left_as_it_is() -> None:
    broken = "max_batch_size: banana\n# slipway.release\n"
    assert unstamped(broken) == broken
    assert unstamped(stamped(broken, 3)) == broken


def parsed_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read, parse = [], model_config.parse
    monkeypatch.setattr(model_config, "parse", lambda text: read.append(text) or parse(text))
    return read


def test_a_document_parses_its_text_once_however_often_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    read, document = parsed_texts(monkeypatch), Document.read(Document.read(TEXT).stamped(1))
    assert (document.message.max_batch_size, document.mistake, document.traffic) == (8, None, None)
    assert read == [TEXT]


POLICY = {"rollout": "r-1", "candidate": 2, "weight": 5}


def test_the_next_policy_takes_the_place_of_the_present_one_without_a_parse_of_the_present_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    present = Document.read(Document.read(TEXT).with_traffic(POLICY).text)
    read = parsed_texts(monkeypatch)
    following = present.with_traffic({**POLICY, "weight": 25})
    assert read == [following.text]
    assert following.text == present.text.replace("5", "25")
    assert following.traffic == {**POLICY, "weight": 25}


@pytest.mark.parametrize(
    "text",
    [
        "parameters { key: 'slipway.traffic' value { string_value: '{\"weight\": 5}' } }\n",
        '# key: "slipway.traffic" value { string_value: "old" }\n',
        'parameters { key: "other" value { string_value: \'key: "slipway.traffic" value { string_value: "x" }\' } }\n',
    ],
)
def test_a_policy_in_another_form_is_replaced_too(text: str) -> None:
    found = Document.read(TEXT + text).with_traffic(POLICY)
    assert found.traffic == POLICY
    assert found.message.parameters.get("other") == Document.read(TEXT + text).message.parameters.get("other")
    assert model_config.parse(found.text) == found.message


def test_an_edit_leaves_the_document_as_it_was() -> None:
    document = Document.read(TEXT)
    other = document.pinned([1], [1, 2]).with_aliases({"champion": 2}).with_traffic(None)
    assert (document.text, document.aliases, document.versions([1, 2])) == (TEXT, {}, [2])
    assert (other.aliases, other.versions([1, 2, 3])) == ({"champion": 2}, [1])
    assert document.message == model_config.parse(TEXT)
    assert other.message == model_config.parse(other.text)


def test_a_text_with_mistakes_serves_nothing_and_says_what_is_wrong() -> None:
    document = Document.read("max_batch_size: banana")
    assert (document.versions([1]), document.aliases, document.traffic) == ([], {}, None)
    assert document.mistake is not None
    assert document.mistake.line == 1
    for asked in (lambda: document.message, lambda: document.with_aliases({})):
        with pytest.raises(InvalidConfig, match="line 1"):
            asked()
    assert document.without_traffic() is document
    assert (document.effect_after(Document.read(TEXT)), document.changed_fields(Document.read(TEXT))) == ("reload", [])


@pytest.mark.parametrize(
    ("text", "says"),
    [("#" * (model_config.MAX_CONFIG_BYTES + 1), "larger than"), ('name: "\ud800"', "not UTF-8")],
)
def test_what_no_configuration_may_be_is_a_mistake(text: str, says: str) -> None:
    mistake = Document.read(text).mistake
    assert mistake is not None
    assert says in mistake.message
