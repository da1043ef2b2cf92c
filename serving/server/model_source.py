"""A source of models: it provides models beside --model-repository or in its place."""

from abc import ABC, abstractmethod


class ModelSource(ABC):
    """Made with (server, options) where a plugin's flags ask for one (serving.cli.options.SourceOptions).

    The program calls its methods once each, in this order. Each but `stop` and `close` may be cancelled where the server is to
    end, and raises ServingError where it cannot start.
    """

    @abstractmethod
    async def register(self) -> None:
        """Find out which models are wanted at start, before clients can ask for them."""

    @abstractmethod
    async def listening(self) -> None:
        """Take note that all listeners are there."""

    @abstractmethod
    async def start(self) -> None:
        """Load the models, before the server loads those of --model-repository."""

    @abstractmethod
    def stop(self) -> None:
        """Begin no more work."""

    @abstractmethod
    def close(self) -> None:
        """Free its resources, when the last request is answered."""
