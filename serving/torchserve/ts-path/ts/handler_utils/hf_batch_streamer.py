"""A streamer for batches in the `generate` of transformers, which yields the new text of all requests at each step."""

from typing import Any

from transformers.generation.streamers import BaseStreamer, TextIteratorStreamer


class TextIteratorStreamerBatch(BaseStreamer):  # type: ignore[misc]  # the types of transformers are not known to mypy
    """Yield, at each step, a list of {"text": ...}, one for each request, until the first request ends."""

    def __init__(
        self,
        tokenizer: Any,
        batch_size: int,
        skip_prompt: bool = False,
        timeout: float | None = None,
        **decode_kwargs: Any,
    ) -> None:
        self.batch_size = batch_size
        self.streamers = [
            TextIteratorStreamer(tokenizer, skip_prompt, timeout, **decode_kwargs) for _ in range(batch_size)
        ]

    def put(self, value: Any) -> None:
        """Take the next tokens, [batch] or [batch, length]."""
        if len(value) != self.batch_size:
            raise ValueError(f"the streamer is for {self.batch_size} requests, and was given the shape {value.shape}")
        for streamer, own in zip(self.streamers, value, strict=True):
            streamer.put(own.reshape(-1))

    def end(self) -> None:
        for streamer in self.streamers:
            streamer.end()

    def __iter__(self) -> "TextIteratorStreamerBatch":
        return self

    def __next__(self) -> list[dict[str, str]]:
        return [{"text": next(streamer)} for streamer in self.streamers]
