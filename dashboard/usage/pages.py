"""The page of usage and quotas, and a month as CSV."""

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render

from dashboard.access.authorisation import VIEWERS, Right, actor_of
from dashboard.models import ApiToken, Quota
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence
from dashboard.usage.csv_table import month_csv
from dashboard.usage.selectors import (
    BY,
    day_ends,
    kept_from,
    month_of,
    month_rows,
    months_known,
    quota_use,
    quotas,
    read_until,
    usage_by,
    usage_total,
)
from dashboard.usage.services import OF, quota_remove, quota_set
from dashboard.web.addresses import get, post
from dashboard.web.pages import SELECTABLE, call_service, page_of, respond, whole_number

_ASKED = 3  # administrators who are named
_LIMIT_LABELS = {
    "requests_per_day": "Requests a day",
    "rows_per_day": "Rows a day",
    "compute_seconds_per_day": "Compute seconds a day",
    "requests_per_second": "Requests a second",
}


@get("usage/", Right.VIEW)
def usage(request: HttpRequest) -> HttpResponse:
    return respond(request, "usage/usage", _context(request))


@get("usage/month.csv", Right.VIEW, name="usage_csv")
def csv_file(request: HttpRequest) -> HttpResponse:
    """Answer with a month as CSV. ?month= names it, such as 2026-11."""
    month = month_of(request.GET.get("month", ""))
    headers = {"Content-Disposition": f'attachment; filename="slipway-usage-{month.name}.csv"'}
    text = month_csv(month_rows(actor_of(request), month).iterator())
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)


@post("usage/quotas", Right.ADMINISTER, page="usage")
def quota_new(request: HttpRequest) -> HttpResponse:
    """Set a quota; if that is refused, keep the form."""
    given = {name: request.POST.get(name, "").strip() for name in ("of", "name", *Quota.LIMITS)}
    try:
        limits = {limit: _number(limit, given[limit]) for limit in Quota.LIMITS}
        quota = quota_set(actor=actor_of(request), of=given["of"], name=given["name"], limits=limits)
    except DashboardError as error:
        context = {**_context(request), "refused": sentence(error.message), "given": given}
        return render(request, "usage/usage.html", context, status=400)
    messages.success(request, f"The quota of {quota.label} is set. The server applies it within two seconds.")
    return redirect("usage")


@post("usage/quotas/<int:pk>/remove", Right.ADMINISTER)
def quota_end(request: HttpRequest, pk: int) -> HttpResponse:
    quota = get_object_or_404(Quota, pk=pk)
    return call_service(request, quota_remove, f"The quota of {quota.label} is removed.", "usage", quota=quota)


def _context(request: HttpRequest) -> dict[str, object]:
    actor = actor_of(request)
    by = request.GET.get("by", "model")
    month = month_of(request.GET.get("month", ""))
    rows = month_rows(actor, month)
    until, behind = read_until()
    return {
        "by": by,
        "choices": BY,
        "month": month.name,
        "months": months_known(actor),
        "page": page_of(request, usage_by(rows, by)),
        "total": usage_total(rows),
        "currency": settings.DEVICE_HOUR_CURRENCY,
        "priced": bool(settings.DEVICE_HOUR_PRICE),
        "counted": settings.REQUIRE_TOKENS,
        "until": until,
        "behind": behind,
        "quotas": [(quota, quota_use(quota)) for quota in quotas(actor)],
        "labels": _LIMIT_LABELS,
        "kinds": OF,
        "known": _known_names() if actor.may(Right.ADMINISTER) else (),
        "kept_from": kept_from(),
        "days": settings.USAGE_DAYS,
        "day_ends": day_ends(),
        "administrators": [] if actor.may(Right.ADMINISTER) else _administrators(),
        "given": _to_change(request) if actor.may(Right.ADMINISTER) else {},
    }


def _administrators() -> list[str]:
    """Return people who can raise a quota."""
    rows = User.objects.filter(is_superuser=True, is_active=True).order_by("username")
    return list(rows.values_list("username", flat=True)[:_ASKED])


def _to_change(request: HttpRequest) -> dict[str, object]:
    """Return the values of the form: those of the quota that ?quota= names, by default none."""
    quota = Quota.objects.filter(pk=whole_number(request.GET.get("quota", "")) or 0).first()
    if quota is None:
        return {"of": "person"}
    return {"of": quota.of, "name": quota.name, **{limit: f"{value:g}" for limit, value in quota.limits()}}


def _known_names() -> list[tuple[str, str]]:
    """Return names that a quota may be for, with what they are."""
    people = [(user.get_username(), "person") for user in User.objects.order_by("username")[:SELECTABLE]]
    groups = [(group.name, "group") for group in Group.objects.exclude(name=VIEWERS).order_by("name")[:SELECTABLE]]
    tokens = [
        (token.prefix, f"token {token.name} of {token.user.get_username()}")
        for token in ApiToken.objects.select_related("user").order_by("user__username", "name")[:SELECTABLE]
    ]
    return [*people, *groups, *tokens]


def _number(limit: str, text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise Invalid.at(limit, f"expected {_LIMIT_LABELS[limit].lower()} as a number, got '{text[:40]}'") from None
