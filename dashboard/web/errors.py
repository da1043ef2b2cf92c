"""The answer at an address that leads nowhere: a page for a person, JSON for a program."""

from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.views import defaults


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if request.path.startswith("/api/"):
        return JsonResponse({"error": "there is nothing at this address"}, status=404)
    return defaults.page_not_found(request, exception)
