"""Other protocols than Triton's in which clients ask the bundled server, for the code that the playground shows."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping

from django.utils.module_loading import import_string

from dashboard.plugins.table import PLUGINS
from repository.config.document import Document


class ClientProtocol(ABC):
    """A protocol. name: of its address. snippet: the kind of code in snippets.js that speaks it, with its label. streams: how
    it sends the responses of a stream, in words."""

    name: str
    snippet: str
    label: str
    streams: str

    @abstractmethod
    def address(self) -> str:
        """Return the server's address in this protocol; "" where the server does not speak it, or on no port."""

    @abstractmethod
    def facts(self, document: Document) -> Mapping[str, bool]:
        """Return what its code must know of a model; a true one says that it can ask the model, as it can every handler."""


@functools.cache
def client_protocols() -> tuple[ClientProtocol, ...]:
    return tuple(import_string(name) for plugin in PLUGINS for name in plugin.client_protocols)
