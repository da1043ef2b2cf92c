"""GET /healthz: whether the dashboard is ready, which is whether it can read its database. For supervisors and load balancers.

200: pages and REST are answered. 503: they would say that the database does not answer. Any answer at all says that the process
lives. A database that takes no writes for a while is read as before: what writes waits, and then tells of it by itself.
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
