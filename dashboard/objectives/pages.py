"""The objective on a model's page, as a page of its own too, and its form."""

import time

from django.contrib import messages
from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import model_get
from dashboard.objectives.selectors import objective_of, standing_of
from dashboard.objectives.services import objective_set
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import back, call_service, respond


@get("models/<str:name>/objective", Right.VIEW)
def model_objective(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "overview")
    found = objective_of(head["model"])
    standing = standing_of(found, time.time()) if found is not None else None
    return respond(request, "objectives/objective", {**head, "objective": found, "standing": standing})


@post("models/<str:name>/objective/set", Right.OPERATE)
def model_objective_set(request: HttpRequest, name: str) -> HttpResponse:
    """Set the objective of a model; an empty share removes it."""
    model = model_get(name)
    try:
        given = {field: _number(request.POST.get(field, ""), label) for field, label in _FIELDS.items()}
    except DashboardError as error:
        messages.error(request, sentence(error.message))
        return back(request, "model_objective", name)
    done = (
        f"The objective of {name} is saved." if given["percent"] is not None else f"{name} has no objective any more."
    )
    return call_service(request, objective_set, done, "model_objective", name, model=model, **given)


_FIELDS = {"percent": "share of good requests", "latency_ms": "latency"}


def _number(text: str, label: str) -> float | None:
    text = text.strip().replace(",", ".")
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise Invalid(f"the {label} '{text[:40]}' is not a number") from None
