"""TextHandler: cleans texts, splits them into words, and turns the words into numbers by means of a vocabulary.

The vocabulary, source_vocab.pt, is a dict from word to number, or a vocabulary of torchtext, which needs torchtext.
"""

import os
import re
import string
import unicodedata
from abc import ABC
from functools import cached_property
from typing import Any

import torch

from ..context import Context
from ..handler_utils.text_utils import get_tokenizer
from ..utils.util import CLEANUP_REGEX
from .base_handler import BaseHandler, attributes
from .contractions import CONTRACTION_MAP

# Short contractions come first, as in TorchServe, which expands only "can't" in "can't've".
_CONTRACTIONS = re.compile("|".join(map(re.escape, sorted(CONTRACTION_MAP, key=len))), re.IGNORECASE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextHandler(BaseHandler, ABC):
    """The base class of text classifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.source_vocab: Any = None
        self.tokenizer: Any = get_tokenizer("basic_english")
        self.input_text: Any = None

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        named = self.manifest["model"].get("sourceVocab")  # older archivers wrote this
        self.source_vocab = self._load_vocabulary(named or self.get_source_vocab_path(context))

    def get_source_vocab_path(self, ctx: Context) -> str:
        """Return the path of the vocabulary: source_vocab.pt, or the file in the handler section of model-config.yaml."""
        named = ((self.model_yaml_config or {}).get("handler") or {}).get("source_vocab") or "source_vocab.pt"
        path = os.path.join(ctx.system_properties["model_dir"], named)
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
            return torch.load(path, weights_only=False)  # the file is trusted as much as the handler's code

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
        return CLEANUP_REGEX.sub("", text)

    def _remove_punctuation(self, text: str) -> str:
        return text.translate(_NO_PUNCTUATION)

    _remove_puncutation = _remove_punctuation  # the spelling in older handlers

    def _tokenize(self, text: str) -> list[str]:
        """Return the words of a text in lower case."""
        return self.tokenizer(text)  # type: ignore[no-any-return]

    # -- explaining ----------------------------------------------------------------------------------------------------
    @cached_property
    def lig(self) -> Any:
        """Return captum's integrated gradients for the layer `embedding` of the model."""
        return attributes().LayerIntegratedGradients(self.model, self.model.embedding)

    def get_word_token(self, input_tokens: list[str]) -> list[str]:
        """Return words without the leading mark that byte-pair encodings use for a space."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return attributions as shares between 0 and 1. attributions: [words, size of the embedding]."""
        shares = torch.softmax(attributions, dim=0 if attributions.dim() in (0, 1, 3) else 1)
        return shares / torch.norm(shares.sum(dim=-1))
