"""Pages of the activity list: search, and export."""

import csv
import io
import json
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from dashboard.access.authorisation import Right
from dashboard.access.happenings import JOB_FAILED, SOURCES, Filter, Happening, happenings
from dashboard.accounts.activity_filter import read_filter
from dashboard.models import AuditEntry, Model, Server
from dashboard.shared.choices import EventKind
from dashboard.shared.exceptions import NotFound
from dashboard.web.addresses import get
from dashboard.web.pages import PAGE_SIZE, SELECTABLE, page_of, respond

MOST_EXPORTED = 20_000  # the export has at most this many rows, the newest ones
GROUPS = [("failures", "Failures"), ("people", "What people did"), ("servers", "Servers and models")]


@get("activity/", Right.VIEW)
def activity(request: HttpRequest) -> HttpResponse:
    wanted = read_filter(request.GET)
    context = {
        "entries": page_of(request, happenings(wanted)),
        "wanted": wanted,
        "from": request.GET.get("from", ""),
        "to": request.GET.get("to", ""),
        "audit_days": settings.AUDIT_DAYS,
        "filtered": wanted != Filter(),
        "groups": GROUPS,
        "kinds": _kinds,  # a function, so that partial updates of the page do not read the kinds
        "people": _people,
        "names": _names,
        "selectable": SELECTABLE,
    }
    return respond(request, "accounts/activity", context)


def _kinds() -> list[tuple[str, str]]:
    """Return the kinds that were recorded so far, each with its label."""
    actions = AuditEntry.objects.order_by().values_list("action", flat=True).distinct()
    events = [(kind.value, kind.label) for kind in EventKind]
    return [*((action, action) for action in sorted(actions)), *events, (JOB_FAILED, "Job failed")]


def _people() -> list[str]:
    names = AuditEntry.objects.order_by().values_list("actor_name", flat=True).distinct()
    return sorted({*names, *Server.objects.values_list("name", flat=True)})


def _names() -> list[str]:
    """Return the names of all models that exist or that the audit trail names."""
    named = AuditEntry.objects.exclude(model_name="").order_by().values_list("model_name", flat=True).distinct()
    return sorted({*named, *Model.objects.values_list("name", flat=True)})


@get("activity/<str:source>-<int:pk>", Right.VIEW)
def activity_at(request: HttpRequest, source: str, pk: int) -> HttpResponse:
    """Redirect to the page of the activity list that shows this row. ?model= selects the list of that model."""
    name = request.GET.get("model", "")
    if source not in SOURCES:
        raise NotFound("there is no such entry in the activity")
    place = happenings(Filter(model=name)).newer_than(source, pk)
    address = reverse("model_activity", args=[name]) if name else reverse("activity")
    return redirect(f"{address}?page={place // PAGE_SIZE + 1}#{source}-{pk}")


@get("activity/export.csv", Right.VIEW, name="activity_csv", form="csv")
@get("activity/export.json", Right.VIEW, name="activity_json", form="json")
def export(request: HttpRequest, form: str) -> HttpResponse:
    """Answer with the newest MOST_EXPORTED rows that match the filter, as a file of CSV or JSON."""
    rows = happenings(read_filter(request.GET))[:MOST_EXPORTED]
    write, media_type = _FORMS[form]
    name = f"slipway-activity-{timezone.now():%Y%m%d-%H%M%S}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(write(rows), content_type=media_type, headers=headers)


def _json(rows: list[Happening]) -> str:
    return json.dumps([_plain(row) for row in rows], ensure_ascii=False, indent=1)


def _csv(rows: list[Happening]) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(_COLUMNS)
    for row in rows:
        values = _plain(row)
        table.writerow([_cell(values[column]) for column in _COLUMNS])
    return text.getvalue()


_COLUMNS = ("at", "who", "kind", "model", "text", "failed", "before", "after", "id")


def _plain(row: Happening) -> dict[str, object]:
    return {
        "at": row.at.isoformat(),
        "who": row.who,
        "kind": row.kind,
        "model": row.model_name,
        "text": row.text,
        "failed": row.failed,
        "before": row.before,
        "after": row.after,
        "id": row.anchor,
    }


def _cell(value: object) -> str:
    """Return a value as the text of a cell, escaped so that no spreadsheet takes it for a formula."""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False) if value else ""
    text = str(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


_FORMS: dict[str, tuple[Callable[[list[Happening]], str], str]] = {
    "csv": (_csv, "text/csv; charset=utf-8"),
    "json": (_json, "application/json"),
}
