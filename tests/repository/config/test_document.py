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


def test_a_text_is_read_once_however_often_it_is_made_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    read, parse = [], model_config.parse
    monkeypatch.setattr(model_config, "parse", lambda text: read.append(text) or parse(text))
    text = TEXT + "# nobody has read this yet\n"
    for number in range(1, 4):
        assert Document.read(Document.read(text).stamped(number)).message.max_batch_size == 8
    assert read == [text]


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
