"""GET /healthz shows supervisors and load balancers whether the dashboard is ready: whether it can read its database.

Status 200: pages and REST are answered. Status 503: the database does not answer. Any answer proves that the process is alive.
A database that accepts no writes for a while counts as ready: reads continue, and a request that writes waits and reports its
error.
"""

from django.contrib.auth.decorators import login_not_required
from django.db import Error, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe


@login_not_required
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return JsonResponse({"status": "the database does not answer"}, status=503)
    return JsonResponse({"status": "ok"})
