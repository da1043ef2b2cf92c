"""Splits a text into words and their n-grams, for handlers of texts."""

import re
from collections.abc import Callable, Iterator, Sequence

_DROPPED = str.maketrans({'"': "", ";": " ", ":": " "})
_APART = re.compile(r"(['.,()!?])")
_LINE_BREAK = "<br />"


def ngrams_iterator(token_list: Sequence[str], ngrams: int) -> Iterator[str]:
    """Yield the words, then each pair of neighbours, and so on up to groups of `ngrams` words."""
    yield from token_list
    for length in range(2, ngrams + 1):
        for start in range(len(token_list) - length + 1):
            yield " ".join(token_list[start : start + length])


def get_tokenizer(
    tokenizer: str | Callable[[str], list[str]] | None, language: str = "en"
) -> Callable[[str], list[str]]:
    """Return the function that splits a text into words: `str.split` for None, the basic English tokenizer for "basic_english",
    or `tokenizer` itself if it is a function."""
    if tokenizer is None:
        return str.split
    if callable(tokenizer):
        return tokenizer
    if tokenizer != "basic_english":
        raise ValueError(f"there is no tokenizer '{tokenizer}' here: name basic_english, or give a function")
    if language != "en":
        raise ValueError(f"the tokenizer basic_english is for en, not for {language}")
    return _basic_english


def _basic_english(line: str) -> list[str]:
    """Return the words of a text in lower case. Punctuation marks are separate words, and some are left out.

    Source: pytorch/text, `torchtext.data.utils.get_tokenizer`. Archives contain vocabularies that were made with it.
    """
    text = line.lower().translate(_DROPPED).replace(_LINE_BREAK, " ")
    return _APART.sub(r" \1 ", text).split()
