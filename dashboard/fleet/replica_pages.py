"""The page of an environment's replicas in Kubernetes: how many there were, why, and how many a person wants."""

from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Right, actor_of
from dashboard.fleet.selectors import environment_get
from dashboard.kubernetes import selectors as select
from dashboard.kubernetes.events import KINDS
from dashboard.kubernetes.services import replicas_set
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import DashboardError, Invalid, NotFound, status_of
from dashboard.web.addresses import get, post
from dashboard.web.pages import page_of, respond, whole_number

SPANS = {"1 h": 1, "6 h": 6, "24 h": 24, "7 d": 7 * 24, "30 d": 30 * 24}  # hours
_USUAL = 6


@get("environments/<slug:name>/replicas/", Right.VIEW)
def replicas(request: HttpRequest, name: str) -> HttpResponse:
    return respond(request, "fleet/replicas", _context(request, _in_kubernetes(name)))


def _context(request: HttpRequest, found: ServerEnvironment, refused: str = "") -> dict[str, Any]:
    replicas = select.replicas_of(found, refused)
    return {
        "environment": found,
        "replicas": replicas,
        "trouble": replicas.trouble,
        "refused": refused,
        "page": page_of(request, select.replica_events(found)),
        "kinds": KINDS,
        "spans": SPANS,
        "hours": _hours(request),
    }


@get("environments/<slug:name>/replicas/chart", Right.VIEW)
def replicas_chart(request: HttpRequest, name: str) -> JsonResponse:
    """Answer with the numbers of replicas in the last ?hours=, and with marks for what changed them."""
    return JsonResponse(select.readings(_in_kubernetes(name), timedelta(hours=_hours(request))))


@post("environments/<slug:name>/replicas/set", Right.OPERATE, page="replicas")
def replicas_change(request: HttpRequest, name: str) -> HttpResponse:
    """Set the number of the form, if the workload still has the number that the page showed. A refused number stays typed."""
    found = _in_kubernetes(name)
    try:
        number, seen = (whole_number(request.POST.get(field, "")) for field in ("replicas", "seen"))
        if number is None:
            raise Invalid.at("replicas", "no number of replicas is given")
        replicas_set(environment=found, replicas=number, seen=seen, actor=actor_of(request))
    except DashboardError as error:
        context = {**_context(request, found, error.message), "typed": request.POST.get("replicas", "")}
        return render(request, "fleet/replicas.html", context, status=status_of(error))
    messages.success(request, f"{name} is scaled to {number}. Its pods come or go in some seconds.")
    return redirect("replicas", name)


def _hours(request: HttpRequest) -> int:
    """Return the span that the address names."""
    asked = request.GET.get("hours", "")
    return next((hours for hours in SPANS.values() if str(hours) == asked), _USUAL)


def _in_kubernetes(name: str) -> ServerEnvironment:
    found = environment_get(name)
    if not found.in_kubernetes:
        raise NotFound(f"the servers of {found.name} are not found in Kubernetes, so no replicas are known")
    return found
