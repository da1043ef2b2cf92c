"""The advice on a model's page, and the configuration page with the advised text."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right
from dashboard.advice.selectors import model_advice
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import model_get
from dashboard.configuration.pages import configuration_page
from dashboard.web.addresses import get
from dashboard.web.pages import respond


@get("models/<str:name>/advice", Right.VIEW, name="model_advice")
def advice(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "overview")
    return respond(request, "advice/advice", {**head, "finding": model_advice(head["model"])})


@get("models/<str:name>/advice/configuration", Right.VIEW)
def advised_configuration(request: HttpRequest, name: str) -> HttpResponse:
    """Show the configuration page with the advised text, which is not applied yet."""
    found = model_advice(model_get(name)).advice
    if found is None:
        return redirect("model_configuration", name)
    return configuration_page(request, name, found.document, summary=found.summary)
