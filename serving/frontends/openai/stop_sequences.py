"""Text that comes in pieces, up to the stop sequence that is whole first, however the text is cut."""


class StopSequences:
    """What could be the beginning of a stop sequence is held back until more is known; `found` says that one has come."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found = False

    def feed(self, text: str, final: bool = False) -> str:
        """The text that may be passed on now."""
        if not self._stops or self.found:
            return "" if self.found else text
        text = self._held + text
        places = [(place + len(stop), place) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.found = True
            return text[: min(places)[1]]
        end = len(text) if final else len(text) - self._unsure(text)
        self._held = text[end:]
        return text[:end]

    def _unsure(self, text: str) -> int:
        """The length of the longest end of the text with which a stop sequence begins."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next((size for size in range(longest, 0, -1) if self._begins(text[-size:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)
