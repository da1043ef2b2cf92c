"""The base class of handlers from the time before BaseHandler."""

from abc import ABC, abstractmethod
from typing import Any


class ModelService(ABC):
    def __init__(self) -> None:
        self.context: Any = None
        self.initialized = False

    def initialize(self, context: Any) -> None:
        self.context = context
        self.initialized = True

    @abstractmethod
    def handle(self, data: list[dict[str, Any]], context: Any) -> list[Any]:
        """Return an answer for each request."""
