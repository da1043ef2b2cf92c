"""The headers of a client by which rollouts are sticky, on their way with its request and with what models ask for its sake."""

from collections.abc import Mapping, Sequence

from serving.core.in_flight import Execution, InFlightRequest
from serving.core.response import Answer


class ClientHeaders:
    """An observer that carries headers, by their names in lower case. It follows a request into the steps of an ensemble, and
    to the models that a Python model calls, so that their rollouts see the same."""

    __slots__ = ("headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        """Nothing is done then."""

    def step(self, child: InFlightRequest) -> None:
        child.observe(self)

    def context(self) -> str:
        return ""

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        """Nothing is done then."""


def header_of(request: InFlightRequest, name: str) -> str | None:
    """Return a header that came with a request; None where none did."""
    carried = _carried(request)
    return carried.headers.get(name) if carried is not None else None


def pass_on(made_for: Sequence[InFlightRequest], child: InFlightRequest) -> None:
    """Let a request that a model makes carry the headers of those that it is made for, where they are all the same."""
    carried = [_carried(one) for one in made_for]
    first = carried[0] if carried else None
    if first is None or _carried(child) is not None:
        return
    if all(one is not None and one.headers == first.headers for one in carried):
        child.observe(first)


def _carried(request: InFlightRequest) -> ClientHeaders | None:
    for observer in request.observers:
        if isinstance(observer, ClientHeaders):
            return observer
    return None
