"""Client headers that make rollouts sticky. Requests that a model makes for a client's request inherit its headers."""

from collections.abc import Mapping, Sequence

from serving.core.in_flight import InFlightRequest, QuietObserver


class ClientHeaders(QuietObserver):
    """An observer that carries headers, by their names in lower case. The steps of an ensemble and the calls of a Python model
    inherit these headers."""

    __slots__ = ("headers",)

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def step(self, child: InFlightRequest) -> None:
        child.observe(self)


def header_of(request: InFlightRequest, name: str) -> str | None:
    """Return a client header of a request, or None if the request has none."""
    carried = _carried(request)
    return carried.headers.get(name) if carried is not None else None


def pass_on(made_for: Sequence[InFlightRequest], child: InFlightRequest) -> None:
    """Copy the client headers of `made_for` to `child`, a model's own request, if all of `made_for` have the same headers."""
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
