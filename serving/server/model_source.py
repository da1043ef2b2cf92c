"""The interface of a source that provides models in addition to --model-repository, or instead of it."""

from abc import ABC, abstractmethod


class ModelSource(ABC):
    """The program creates a source with (server, options) if a plugin's flags require it (serving.cli.options.SourceOptions).

    It calls each method once, in this order. A method raises ServingError if it fails. A shutdown may cancel `register`,
    `listening` and `start`.
    """

    @abstractmethod
    async def register(self) -> None:
        """Determine which models to load at start. Called before clients can request them."""

    @abstractmethod
    async def listening(self) -> None:
        """Called when all listeners accept connections."""

    @abstractmethod
    async def start(self) -> None:
        """Load the models. The server loads the models of --model-repository afterwards."""

    @abstractmethod
    def stop(self) -> None:
        """Start no more work: the server shuts down."""

    @abstractmethod
    def close(self) -> None:
        """Free the resources of the source. Called when the last request has been answered."""
