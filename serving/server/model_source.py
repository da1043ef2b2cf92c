"""The interface of a source of models, which provides models in addition to --model-repository, or instead of it."""

from abc import ABC, abstractmethod


class ModelSource(ABC):
    """A source is made with (server, options) if a plugin's flags ask for it (serving.cli.options.SourceOptions).

    The program calls each method once, in this order. Each method except `stop` and `close` may be cancelled if the server has
    to stop, and raises ServingError if it fails.
    """

    @abstractmethod
    async def register(self) -> None:
        """Find out which models are wanted at start, before clients can ask for them."""

    @abstractmethod
    async def listening(self) -> None:
        """All listeners accept connections now."""

    @abstractmethod
    async def start(self) -> None:
        """Load the models, before the server loads the models of --model-repository."""

    @abstractmethod
    def stop(self) -> None:
        """Start no more work: the server stops."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources of the source. Called when the last request has been answered."""
