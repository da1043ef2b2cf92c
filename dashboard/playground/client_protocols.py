"""Protocols other than Triton's in which clients can call the bundled server, for the code that the playground shows."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping

from django.utils.module_loading import import_string

from dashboard.plugins.table import PLUGINS
from repository.config.document import Document


class ClientProtocol(ABC):
    """A protocol. name: the key of its address. snippet: the kind of its code in snippets.js. label: the name of that code on
    the page. streams: a phrase for how it sends the responses of a stream."""

    name: str
    snippet: str
    label: str
    streams: str

    @abstractmethod
    def address(self) -> str:
        """Return the server's address in this protocol; "" if the server does not serve it on a port."""

    @abstractmethod
    def facts(self, document: Document) -> Mapping[str, bool]:
        """Return facts about a model that the code needs. The protocol can call the model if any is true."""


@functools.cache
def client_protocols() -> tuple[ClientProtocol, ...]:
    return tuple(import_string(name) for plugin in PLUGINS for name in plugin.client_protocols)
