"""GET /livez and GET /readyz show supervisors and load balancers whether the dashboard is alive, and whether it is ready.

/livez asks neither the database nor any other program: no answer means that this process must be replaced.
/readyz has status 200 if pages and REST are answered, and 503 if the database does not answer. A database that accepts no
writes for a while counts as ready: reads continue, and a request that writes waits and reports its error. /healthz is the
older name of /readyz.
"""

from collections.abc import Callable

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

Handler = Callable[[HttpRequest], HttpResponse]


LIVENESS = "/livez"


def tell_liveness(get_response: Handler) -> Handler:
    """Answer /livez before any other middleware reads the session of a person who is signed in."""

    @require_safe
    def livez(request: HttpRequest) -> HttpResponse:
        return JsonResponse({"status": "ok"})

    def middleware(request: HttpRequest) -> HttpResponse:
        return livez(request) if request.path_info == LIVENESS else get_response(request)

    return middleware


@login_not_required
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return JsonResponse({"status": "the database does not answer"}, status=503)
    return JsonResponse({"status": "ok"})
