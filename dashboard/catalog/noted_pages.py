"""The page of a model's requests that stood out: the slowest and the failed ones of a span, and failures by cause."""

import time
from datetime import UTC, datetime

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from dashboard.access.authorisation import CLIENT_DATA, Right, actor_of
from dashboard.catalog.pages import model_context
from dashboard.metrics.noted import KEPT_S, WHOLE_S, Wanted, failure_causes, noted_requests
from dashboard.models.noted import PHASES
from dashboard.web.addresses import get
from dashboard.web.pages import respond

SPANS_S = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": KEPT_S}


@get("models/<str:name>/requests", Right.VIEW)
def model_requests(request: HttpRequest, name: str) -> HttpResponse:
    """Show the requests between `from` and `to` (unix seconds; without `to`, until now), or of a range that ends now.

    version, server, cause (FoundCause.key): only those. Without the right CLIENT_DATA, messages and causes are left out,
    because they may quote what clients sent.
    """
    start, end, chosen = _span(request)
    version = _digits(request, "version", 18)
    wanted = Wanted(name, start, end, version, request.GET.get("server", "")[:100])
    causes, key = failure_causes(wanted), request.GET.get("cause", "")
    cause = next((one for one in causes if one.key == key), None)
    slow = noted_requests(wanted, failed=False)
    failed = noted_requests(wanted, failed=True, cause=cause) if cause is not None or not key else []
    context = {
        **model_context(name, "requests"),
        "spans": list(SPANS_S),
        "chosen": chosen,
        "start": datetime.fromtimestamp(start, UTC),
        "end": datetime.fromtimestamp(end, UTC),
        "ended": bool(request.GET.get("to")),
        "charts": f"{reverse('model', args=[name])}?from={int(start)}&to={int(end)}#charts",
        "version": version,
        "server": wanted.server,
        "key": key,
        "cause": cause,
        "slow": slow,
        "failed": failed,
        "several_servers": len({row.server_id for row in (*slow, *failed)}) > 1,
        "phases": PHASES,
        "causes": causes,
        "hourly": start < time.time() - WHOLE_S - 60,
        "sees": actor_of(request).may(CLIENT_DATA),
    }
    return respond(request, "catalog/model/requests", context)


def _span(request: HttpRequest) -> tuple[float, float, str]:
    """Return the span in the address, and the range that it is; "" for a span that begins at a moment."""
    now = time.time()
    start, end = _digits(request, "from", 11), _digits(request, "to", 11)
    until = now if end is None and not request.GET.get("to") else end
    if start is not None and until is not None and start < until:
        return float(start), float(until), ""
    chosen = request.GET.get("range", "")
    chosen = chosen if chosen in SPANS_S else "1h"
    return now - SPANS_S[chosen], now, chosen


def _digits(request: HttpRequest, name: str, most: int) -> int | None:
    text = request.GET.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most else None
