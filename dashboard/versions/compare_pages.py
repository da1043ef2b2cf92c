"""The page that shows two versions or releases of a model side by side."""

from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right
from dashboard.catalog.pages import model_context
from dashboard.metrics.outages import outage_sentence
from dashboard.servers.selectors import production_servers
from dashboard.versions.compare import FIGURES_OF, choices, chosen, comparison
from dashboard.web.addresses import get
from dashboard.web.pages import respond


@get("models/<str:name>/compare", Right.VIEW)
def model_compare(request: HttpRequest, name: str) -> HttpResponse:
    """Show the comparison. ?a= and ?b=: the two sides, such as v1 and r7; each has a useful default."""
    head = model_context(name, "versions")
    model = head["model"]
    a, b = chosen(model, request.GET.get("a", ""), request.GET.get("b", ""))
    compared = comparison(model, a, b) if a and b else None
    live = head["summary"].loaded_versions
    context = {
        **head,
        "choices": choices(model, a, b),
        "keys": (("a", "Left", a), ("b", "Right", b)),
        "compared": compared,
        "outage": SimpleLazyObject(
            lambda: outage_sentence(list(production_servers()), int(FIGURES_OF.total_seconds()))
        ),
        "silent": [number for number in compared.tried_versions if number not in live] if compared else [],
    }
    return respond(request, "versions/compare", context)
