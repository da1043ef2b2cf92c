"""The models and pages that the search can open; the browser fetches them when the search opens."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.models import Model
from dashboard.web.addresses import get

# The pages of the rail and the search, in the rail's order, each with the key that opens it after `g`.
PAGES = {
    "overview": "o",
    "models": "m",
    "rollouts": "r",
    "alerts": "l",
    "jobs": "j",
    "servers": "s",
    "usage": "u",
    "activity": "a",
    "settings": "e",
}
MOST_MODELS = 300  # if there are more models, the search fetches those that match the typed text


@get("places", Right.VIEW)
def places(request: HttpRequest) -> HttpResponse:
    pages = [{"label": name.capitalize(), "address": reverse(name), "kind": "page", "icon": name} for name in PAGES]
    names = Model.objects.values_list("name", flat=True)
    found = list(names.filter(name__icontains=request.GET.get("q", "").strip())[: MOST_MODELS + 1])
    models = [
        {"label": name, "address": reverse("model", args=[name]), "kind": "model", "icon": "models"}
        for name in found[:MOST_MODELS]
    ]
    return render(request, "overview/places.html", {"places": [*models, *pages], "more": len(found) > MOST_MODELS})
