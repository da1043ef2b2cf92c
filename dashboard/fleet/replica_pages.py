"""The page of an environment's replicas in Kubernetes: how many there were, why, and how many a person wants."""

from datetime import timedelta

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils import timezone

from dashboard.access.authorisation import Right
from dashboard.fleet.selectors import environment_get
from dashboard.kubernetes import selectors as select
from dashboard.kubernetes.events import KINDS
from dashboard.kubernetes.services import replicas_set
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond, whole_number

SPANS = {"1 h": 1, "6 h": 6, "24 h": 24, "7 d": 7 * 24, "30 d": 30 * 24}  # hours
_USUAL = 6
_STALE = timedelta(seconds=60)


@get("environments/<slug:name>/replicas/", Right.VIEW)
def replicas(request: HttpRequest, name: str) -> HttpResponse:
    found = _in_kubernetes(name)
    look = select.look_of(found)
    workloads = look.workloads if look is not None else []
    autoscalers = look.autoscalers if look is not None else []
    context = {
        "environment": found,
        "look": look,
        "stale": look is not None and timezone.now() - look.looked_at > _STALE,
        "count": select.newest_count(found),
        "page": page_of(request, select.replica_events(found)),
        "kinds": KINDS,
        "spans": SPANS,
        "hours": _hours(request),
        "refusal": select.refusal(found, workloads, autoscalers),
    }
    return respond(request, "fleet/replicas", context)


@get("environments/<slug:name>/replicas/chart", Right.VIEW)
def replicas_chart(request: HttpRequest, name: str) -> JsonResponse:
    """Answer with the numbers of replicas in the last ?hours=, and with marks for what changed them."""
    return JsonResponse(select.readings(_in_kubernetes(name), timedelta(hours=_hours(request))))


@post("environments/<slug:name>/replicas/set", Right.OPERATE)
def replicas_change(request: HttpRequest, name: str) -> HttpResponse:
    """Set the number of the form, if the workload still has the number that the page showed."""
    found = _in_kubernetes(name)
    try:
        number, seen = (whole_number(request.POST.get(field, "")) for field in ("replicas", "seen"))
        if number is None:
            raise Invalid.at("replicas", "no number of replicas is given")
    except Invalid as error:
        messages.error(request, sentence(error.message))
        return redirect("replicas", name)
    given = {"environment": found, "replicas": number, "seen": seen}
    done = f"{name} is scaled to {number}. Its pods come or go in some seconds."
    return call_service(request, replicas_set, done, "replicas", name, **given)


def _hours(request: HttpRequest) -> int:
    """Return the span that the address names."""
    asked = request.GET.get("hours", "")
    return next((hours for hours in SPANS.values() if str(hours) == asked), _USUAL)


def _in_kubernetes(name: str) -> ServerEnvironment:
    found = environment_get(name)
    if not found.in_kubernetes:
        raise NotFound(f"the servers of {found.name} are not found in Kubernetes, so no replicas are known")
    return found
