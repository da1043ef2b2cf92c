"""TextHandler: requests that are texts, cleaned and cut into words, and the vocabulary that makes numbers of them.

The vocabulary, source_vocab.pt, is a dict from word to number, or torchtext's, which needs torchtext.
"""

import os
import re
import string
import unicodedata
from abc import ABC
from typing import Any

import torch

from ..context import Context
from .base_handler import BaseHandler
from .contractions import CONTRACTION_MAP

_TAGS = re.compile(r"<.*?>")
_WORDS = re.compile(r"\w+|[^\w\s]")
_CONTRACTIONS = re.compile(
    "|".join(map(re.escape, sorted(CONTRACTION_MAP, key=len, reverse=True))), re.IGNORECASE | re.DOTALL
)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler, ABC):
    """What classifiers of texts share."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.input_text: Any = None

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self.source_vocab = self._load_vocabulary(self.get_source_vocab_path(context))

    def get_source_vocab_path(self, context: Context) -> str:
        """Return where the vocabulary lies: source_vocab.pt, or what the handler section of model-config.yaml names."""
        named = ((self.model_yaml_config or {}).get("handler") or {}).get("source_vocab") or "source_vocab.pt"
        path = os.path.join(context.system_properties["model_dir"], named)
        if not os.path.isfile(path):
            raise RuntimeError(f"the archive has no {named}: pack the vocabulary among the extra files")
        return path

    def _load_vocabulary(self, path: str) -> Any:
        try:
            return torch.load(path, weights_only=True)
        except Exception as plain:
            try:
                import torchtext  # noqa: F401
            except ImportError:
                raise ImportError(
                    f"{os.path.basename(path)} is no plain dict from word to number; one of torchtext needs torchtext, which "
                    "is not installed"
                ) from plain
            return torch.load(path, weights_only=False)  # the archive's own, as its handler's code is

    # -- cleaning ------------------------------------------------------------------------------------------------------
    def _expand_contractions(self, text: str) -> str:
        """Return "is not" for "isn't", and so on."""

        def full(match: re.Match[str]) -> str:
            found = match.group(0)
            expanded = CONTRACTION_MAP.get(found) or CONTRACTION_MAP[found.lower()]
            return found[0] + expanded[1:] if found[0].isalpha() else expanded

        return _CONTRACTIONS.sub(full, text).replace("'", "")

    def _remove_accented_characters(self, text: str) -> str:
        return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("utf-8", "ignore")

    def _remove_html_tags(self, text: str) -> str:
        return _TAGS.sub("", text)

    def _remove_punctuation(self, *args: str, **kwargs: str) -> str:
        (text,) = (*args, *kwargs.values())
        return text.translate(_NO_PUNCTUATION)

    def _tokenize(self, text: str) -> list[str]:
        """Return the words of a text, in small letters."""
        return _WORDS.findall(text.lower())

    # -- explaining ----------------------------------------------------------------------------------------------------
    def get_word_token(self, input_tokens: Any, tokenizer: Any) -> list[str]:
        """Return the words of a row of numbers, by a tokenizer of transformers."""
        return [token.replace("\u0120", "") for token in tokenizer.convert_ids_to_tokens(input_tokens[0])]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return one attribution for each word."""
        summed = attributions.sum(dim=-1).squeeze(0)
        return summed / torch.norm(summed)
