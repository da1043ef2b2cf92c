"""Helpers of views: a whole page or one part of it, pages of a list, actions that end in a redirect."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from django.contrib import messages
from django.core.paginator import Page, Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django_htmx.middleware import HtmxDetails

from dashboard.access.authorisation import actor_of
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

PAGE_SIZE = 50
_MOST_DIGITS = 18  # the most digits of a number that every database can store

Row = TypeVar("Row")
M = TypeVar("M", bound=Model)


class HtmxRequest(HttpRequest):
    """A request to which HtmxMiddleware has added `htmx`."""

    htmx: HtmxDetails


def respond(
    request: HttpRequest, name: str, context: Mapping[str, object], parts: Sequence[str] = ("body",)
) -> HttpResponse:
    """Render the page `name`.html, or for htmx only a part of it: `name`_<part>.html.

    parts: the parts that ?part= may name; the first one is the default.
    """
    if not cast(HtmxRequest, request).htmx:
        return render(request, f"{name}.html", context)
    wanted = request.GET.get("part")
    return render(request, f"{name}_{wanted if wanted in parts else parts[0]}.html", context)


SELECTABLE = 200  # the most options of one list in a form


def page_of(
    request: HttpRequest, rows: "QuerySet[M, Row] | Sequence[Row]", size: int = PAGE_SIZE, by: str = "page"
) -> Page[Row]:
    """Return the page of a list that ?page= names: the first page by default, the last one if the number is too high. by: the
    name of the parameter, for a page with two lists."""
    return Paginator(rows, size).get_page(request.GET.get(by))


def call_service(
    request: HttpRequest, service: Callable[..., object], done: str, then: str, *args: object, **given: object
) -> HttpResponse:
    """Call a service for the request's person, and redirect to a page that shows a message about the outcome.

    done: the message after success. A job that is still running, and an error of the service, have other messages.
    then, args: the name of the view to go to, and its arguments. given: the service's arguments, except the actor.
    """
    try:
        result = service(actor=actor_of(request), **given)
    except DashboardError as error:
        messages.error(request, sentence(error.message))
    else:
        _report(request, result, done)
    return back(request, then, *args)


def _report(request: HttpRequest, result: object, done: str) -> None:
    if not isinstance(result, Job) or result.state == JobState.SUCCEEDED:
        messages.success(request, done)
    elif result.state == JobState.FAILED:
        messages.error(request, sentence(result.error))
    else:
        messages.info(request, f"{result.title}: under way. You can leave this page; it is listed under Jobs.")


def back(request: HttpRequest, then: str, *args: object) -> HttpResponse:
    """Redirect to the page that the form names in `next`, if it is one of ours, else to the view `then`."""
    target = request.POST.get("next", "")
    # `redirect` would take a text without a slash at its start for the name of a view.
    if target.startswith("/") and url_has_allowed_host_and_scheme(target, allowed_hosts={request.get_host()}):
        return redirect(target)
    return redirect(then, *args)


def whole_number(text: str) -> int | None:
    """Return the number that a person typed into a form, or None for "".

    Raises Invalid if the text is not a whole number or is too long.
    """
    text = text.strip()
    if text and not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise Invalid(f"'{text[:40]}' is not a whole number" + (" that fits" if text.isdecimal() else ", from 0 on"))
    return int(text) if text else None


def sorted_rows(
    rows: Iterable[Row], sort: str, keys: "Mapping[str, Callable[[Row], SupportsRichComparison | None]]", default: str
) -> tuple[list[Row], str]:
    """Return the rows in the order that `sort` names, and the name of that order.

    sort: a name in `keys`, with `-` before it for the reverse order; any other text means `default`. Rows with the key None
    come last in either order.
    """
    name = sort if sort.removeprefix("-") in keys else default
    key, reverse = keys[name.removeprefix("-")], name.startswith("-")
    rows = list(rows)
    known = [row for row in rows if key(row) is not None]
    unknown = [row for row in rows if key(row) is None]
    return sorted(known, key=cast("Callable[[Row], SupportsRichComparison]", key), reverse=reverse) + unknown, name
