"""The page of a model's requests that stood out: the slowest and the failed ones of a span, and failures by cause."""

import time

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from dashboard.access.authorisation import CLIENT_DATA, Right, actor_of
from dashboard.catalog.pages import model_context
from dashboard.metrics.noted import KEPT_S, failure_causes, noted_requests
from dashboard.models.noted import PHASES
from dashboard.web.addresses import get
from dashboard.web.pages import respond

SPANS_S = {"15m": 900, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600, "7d": KEPT_S}


@get("models/<str:name>/requests", Right.VIEW)
def model_requests(request: HttpRequest, name: str) -> HttpResponse:
    """Show the requests between `from` and `to` (unix seconds), or of a range that ends now. Without the right CLIENT_DATA,
    messages and causes are left out, because they may quote what clients sent."""
    start, end, chosen = _span(request)
    context = {
        **model_context(name, "requests"),
        "spans": list(SPANS_S),
        "chosen": chosen,
        "start": start,
        "end": end,
        "charts": f"{reverse('model', args=[name])}?from={int(start)}&to={int(end)}" if not chosen else "",
        "slow": noted_requests(model_name=name, start=start, end=end, failed=False),
        "failed": noted_requests(model_name=name, start=start, end=end, failed=True),
        "phases": PHASES,
        "causes": failure_causes(model_name=name, start=start, end=end),
        "sees": actor_of(request).may(CLIENT_DATA),
    }
    return respond(request, "catalog/model/requests", context)


def _span(request: HttpRequest) -> tuple[float, float, str]:
    """Return the span in the address, and the range that it is; "" for two moments."""
    given = [request.GET.get(name, "") for name in ("from", "to")]
    if all(part.isascii() and part.isdigit() and len(part) < 12 for part in given) and int(given[0]) < int(given[1]):
        return float(given[0]), float(given[1]), ""
    chosen = request.GET.get("range", "")
    chosen = chosen if chosen in SPANS_S else "1h"
    now = time.time()
    return now - SPANS_S[chosen], now, chosen
