"""The audit trail: who did what, when, and what changed."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.access import audit
from dashboard.access.authorisation import Right, requires
from dashboard.models import AuditEntry
from dashboard.web.pages import page_of, respond


@require_GET
@requires(Right.VIEW)
def activity(request: HttpRequest) -> HttpResponse:
    action, who, name = (request.GET.get(key, "").strip() for key in ("action", "who", "model"))
    entries = audit.activity(action=action, actor_name=who)
    if name:
        entries = entries.filter(model_name=name)
    everything = AuditEntry.objects.order_by()
    context = {
        "entries": page_of(request, entries),
        "action": action,
        "who": who,
        "model_name": name,
        "filtered": bool(action or who or name),
        "actions": sorted(everything.values_list("action", flat=True).distinct()),
        "people": sorted(everything.values_list("actor_name", flat=True).distinct()),
        "names": sorted(everything.exclude(model_name="").values_list("model_name", flat=True).distinct()),
    }
    return respond(request, "accounts/activity", context)
