"""What several pages share: whole page or its changing part, pages of a list, actions that end in a redirect."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

from dashboard.access.authorisation import actor_of
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import sentence

PAGE_SIZE = 50


class HtmxRequest(HttpRequest):
    """As HtmxMiddleware hands it on."""

    htmx: HtmxDetails


def respond(request: HttpRequest, name: str, context: dict[str, Any], parts: Sequence[str] = ("body",)) -> HttpResponse:
    """The page `name`.html, or for htmx only a part of it that refreshes by itself: `name`_body.html, or that of ?part=."""
    if not cast(HtmxRequest, request).htmx:
        return render(request, f"{name}.html", context)
    wanted = request.GET.get("part")
    return render(request, f"{name}_{wanted if wanted in parts else parts[0]}.html", context)


def page_of(request: HttpRequest, rows: Any, size: int = PAGE_SIZE) -> Any:
    return Paginator(rows, size).get_page(request.GET.get("page"))


def act(request: HttpRequest, service: Callable[..., Any], done: str, *then: Any, **given: Any) -> HttpResponse:
    """Runs a service for whoever asks, and says what happened, or is happening in a job; on a refusal says why.

    then: the view that shows it, and its arguments. given: the service's own, beside the actor.
    """
    try:
        result = service(actor=actor_of(request), **given)
    except DashboardError as error:
        messages.error(request, sentence(error.message))
    else:
        _say(request, result, done)
    return back(request, *then)


def _say(request: HttpRequest, result: Any, done: str) -> None:
    if not isinstance(result, Job) or result.state == JobState.SUCCEEDED:
        messages.success(request, done)
    elif result.state == JobState.FAILED:
        messages.error(request, sentence(result.error))
    else:
        messages.info(request, f"{result.title}: under way. You can leave this page; it is listed under Jobs.")


def back(request: HttpRequest, then: str, *args: Any) -> HttpResponse:
    """To the page that the form names in `next`, when it is one of ours, else to the view `then`."""
    target = request.POST.get("next", "")
    if target and url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}):
        return redirect(target)
    return redirect(then, *args)


def sorted_rows(
    rows: Iterable[Any], sort: str, keys: dict[str, Callable[[Any], Any]], default: str
) -> tuple[list[Any], str]:
    """Rows by the key that `sort` names (`-` turns it); what has no value comes last either way."""
    name = sort if sort.removeprefix("-") in keys else default
    key, reverse = keys[name.removeprefix("-")], name.startswith("-")
    rows = list(rows)
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=key, reverse=reverse) + unknown, name
