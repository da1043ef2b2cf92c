"""Middleware for every response."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from dashboard.shared.exceptions import DashboardError, status_of

Handler = Callable[[HttpRequest], HttpResponse]


def content_security_policy(get_response: Handler) -> Handler:
    """Let browsers load only our own assets: injected code neither runs nor reaches other hosts."""
    policy = "; ".join(f"{name} {value}" for name, value in settings.CONTENT_SECURITY_POLICY.items())

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.setdefault("Content-Security-Policy", policy)
        return response

    return middleware


def refuse_nul(get_response: Handler) -> Handler:
    """Answer 400 to an address with a NUL: no name has one, and databases differ in their treatment of it."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if "\0" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
            return JsonResponse({"error": "the address holds a NUL character; send it without one"}, status=400)
        return get_response(request)

    return middleware


class ErrorPages:
    """Turn a DashboardError that a view raises into a page with its sentence and its status."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, DashboardError):
            return None
        status = status_of(error)
        return render(request, "error.html", {"status": status, "message": error.message}, status=status)
