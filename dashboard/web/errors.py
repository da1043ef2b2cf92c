"""Error answers where no view answers: a page for a person, JSON for a program.

They are for unknown addresses, for a database that cannot be used, and for faults of the dashboard itself.
"""

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import loader
from django.views import defaults

RETRY_AFTER_S = 5

_AWAY = "the database does not answer; the models keep serving: try again in a moment"
_FULL = "the disk of the database is full; the models keep serving: make room, then try again"
_FULL_CODES = ("SQLITE_FULL", "53100")  # SQLite's name, and PostgreSQL's code for disk_full


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if _by_program(request):
        return JsonResponse({"error": "there is nothing at this address"}, status=404)
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Answer an unhandled exception, which is still the current one when Django calls this."""
    error = sys.exc_info()[1]
    if isinstance(error, OperationalError | InterfaceError):
        return _database_error(request, error)
    if _by_program(request):
        message = "the dashboard made a mistake; what went wrong is in its log, and the models keep serving"
        return JsonResponse({"error": message}, status=500)
    return defaults.server_error(request)


def _database_error(request: HttpRequest, error: Exception) -> HttpResponseBase:
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    status, message = (507, _FULL) if code in _FULL_CODES else (503, _AWAY)
    response: HttpResponseBase
    if _by_program(request):
        response = JsonResponse({"error": message}, status=status)
    else:  # the request is left out, because its user would be read from the database
        page = loader.render_to_string("error.html", {"status": status, "message": message})
        response = HttpResponse(page, status=status)
    if status == 503:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response


def _by_program(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
