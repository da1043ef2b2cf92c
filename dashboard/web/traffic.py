"""What this web process has done since it started, for GET /api/v1/web-metrics: requests by route, and WebSockets."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from django.http import HttpRequest, HttpResponse

Handler = Callable[[HttpRequest], HttpResponse]

BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Clients choose the method and the address, so only these methods, and the names of routes, become labels.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
NO_ROUTE = "none"  # static files, health checks and addresses that do not exist


@dataclass(slots=True)
class Times:
    """How long a route's answers took. counts: by the bounds, and those above the last one."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0


class Traffic:
    """The counters; the threads of requests change them under a lock. answered: by route, method and status."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[str, Times] = {}
        self.under_way = 0
        self.websockets: Counter[str] = Counter()  # open ones, by kind
        self.lock = threading.Lock()

    def count(self, route: str, method: str, status: int, took_s: float) -> None:
        with self.lock:
            self.answered[route, method if method in _METHODS else "other", status] += 1
            times = self.times.setdefault(route, Times())
            times.counts[bisect_left(BOUNDS_S, took_s)] += 1
            times.sum_s += took_s

    @contextmanager
    def request(self) -> Iterator[None]:
        with self.lock:
            self.under_way += 1
        try:
            yield
        finally:
            with self.lock:
                self.under_way -= 1

    @contextmanager
    def websocket(self, kind: str) -> Iterator[None]:
        """Count a WebSocket for as long as the block runs, on the event loop."""
        self.websockets[kind] += 1
        try:
            yield
        finally:
            self.websockets[kind] -= 1


TRAFFIC = Traffic()


def count_requests(get_response: Handler) -> Handler:
    def middleware(request: HttpRequest) -> HttpResponse:
        began = time.monotonic()
        with TRAFFIC.request():
            response = get_response(request)
        match = request.resolver_match
        route = match.view_name if match is not None else NO_ROUTE
        TRAFFIC.count(route, request.method or "", response.status_code, time.monotonic() - began)
        return response

    return middleware
