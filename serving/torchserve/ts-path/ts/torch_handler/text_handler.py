"""TextHandler: cleans texts, splits them into words, and turns these into numbers by a vocabulary.

The vocabulary, source_vocab.pt, is a dict from word to number, or torchtext's, which needs torchtext.
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

# Short ones first, as TorchServe finds them: of "can't've" it expands "can't".
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
        named = self.manifest["model"].get("sourceVocab")  # of older archivers
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
            return torch.load(path, weights_only=False)  # trusted like the code of the archive's handler

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

    _remove_puncutation = _remove_punctuation  # as older handlers spell it

    def _tokenize(self, text: str) -> list[str]:
        """Return the words of a text, in small letters."""
        return self.tokenizer(text)  # type: ignore[no-any-return]

    # -- explaining ----------------------------------------------------------------------------------------------------
    @cached_property
    def lig(self) -> Any:
        """Captum's integrated gradients of the layer `embedding` of the model."""
        return attributes().LayerIntegratedGradients(self.model, self.model.embedding)

    def get_word_token(self, input_tokens: list[str]) -> list[str]:
        """Return words without the leading mark for a space of byte-pair encodings."""
        return [token.replace("\u0120", "") for token in input_tokens]

    def summarize_attributions(self, attributions: Any) -> Any:
        """Return the attributions of a text's words, [words, size of the embedding], between 0 and 1."""
        shares = torch.softmax(attributions, dim=0 if attributions.dim() in (0, 1, 3) else 1)
        return shares / torch.norm(shares.sum(dim=-1))
