"""text_classifier: the probabilities of a text's classes, from a model that takes word indices and offsets (EmbeddingBag)."""

from typing import Any

import torch

from ..handler_utils.text_utils import ngrams_iterator
from ..utils.util import map_class_to_label
from .text_handler import TextHandler


class TextClassifier(TextHandler):
    """Answers with {label: probability}. The handler takes one request at a time, because the model's input is one text."""

    ngrams = 2

    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        """Return the vocabulary indices of a text's words and n-grams, and the words."""
        row = data[0]
        text: Any = row.get("data") or row.get("body")
        if isinstance(text, bytes | bytearray):
            text = text.decode("utf-8")
        text = self._expand_contractions(self._remove_html_tags(text).lower())
        words = self._tokenize(self._remove_punctuation(self._remove_accented_characters(text)))
        return self._numbers(words), words

    def _numbers(self, words: list[str]) -> Any:
        """Return the vocabulary index of each word and n-gram."""
        numbers = [self._number(one) for one in ngrams_iterator(words, self.ngrams)]
        return torch.as_tensor(numbers, dtype=torch.int64, device=self.device)

    def _number(self, word: str) -> int:
        """Return the vocabulary index of a word. If the vocabulary lacks the word, return the index of <unk>, or else 0."""
        if isinstance(self.source_vocab, dict):
            known: dict[str, int] = self.source_vocab
            return int(known.get(word, known.get("<unk>", 0)))
        return int(self.source_vocab[word])

    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        numbers, _ = data
        return super().inference(numbers, torch.as_tensor([0], device=self.device))

    def get_insights(self, text_preprocess: Any, _: Any, target: int = 0) -> Any:
        """Return the words of a text, and how much each index contributes to a class, according to captum."""
        numbers, words = text_preprocess
        attributions = self.lig.attribute(
            numbers,
            torch.zeros_like(numbers),
            additional_forward_args=torch.tensor([0], device=self.device),
            target=target,
        )
        importances = self.summarize_attributions(attributions).tolist()
        return [{"importances": importances, "words": self.get_word_token(words)}]

    def postprocess(self, data: Any) -> list[Any]:
        return map_class_to_label(torch.softmax(data, dim=-1).tolist(), self.mapping)
