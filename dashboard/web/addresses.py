"""Addresses of pages: each view declares its own, with its methods and the right that it needs.

    @get("models/<str:name>/log", Right.VIEW)
    def model_log(request: HttpRequest, name: str) -> HttpResponse:

Unless another name is given, `reverse` finds the address by the view's name. dashboard.page_urls collects the addresses.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_http_methods

from dashboard.access.authorisation import Answer, Arguments, Right, View, requires

DASHBOARD = Path(__file__).resolve().parents[1]
ADDRESSES: list[URLPattern] = []


def get(
    address: str, right: Right, name: str = "", **given: object
) -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    """Give a view an address at which it answers GET. given: arguments of the view that are not part of the address."""
    return _at(["GET"], address, right, name, given)


def post(
    address: str, right: Right, name: str = "", page: str = ""
) -> Callable[[View[Arguments, Answer]], View[Arguments, HttpResponseBase]]:
    """Give a view the address of a form.

    page: the name of the page that the view answers with, as when it refuses the form. The browser stays at the address of
    the form, so that the links of the page to another query (?page=2) lead there too. GET goes on from there to the page.
    """

    def decorate(view: View[Arguments, Answer]) -> View[Arguments, HttpResponseBase]:
        if not page:
            return _at(["POST"], address, right, name, {})(view)
        return _at(["GET", "POST"], address, right, name, {})(_or_page(view, page))

    return decorate


def _or_page(view: View[Arguments, Answer], page: str) -> View[Arguments, HttpResponseBase]:
    @wraps(view)
    def view_or_page(request: HttpRequest, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> HttpResponseBase:
        if request.method == "POST":
            return view(request, *args, **kwargs)
        query = request.GET.urlencode()
        return redirect(_address_of(page, kwargs) + (f"?{query}" if query else ""))

    return view_or_page


def _address_of(page: str, given: Mapping[str, object]) -> str:
    """Return the address of a page, which takes some of the arguments of a view."""
    [taken] = (one.pattern.converters for one in ADDRESSES if one.name == page)
    return reverse(page, kwargs={name: given[name] for name in taken})


def get_and_post(
    address: str, right: Right, name: str = ""
) -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    return _at(["GET", "POST"], address, right, name, {})


def _at(
    methods: list[str], address: str, right: Right, name: str, given: dict[str, object]
) -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    def decorate(view: View[Arguments, Answer]) -> View[Arguments, Answer]:
        checked = require_http_methods(methods)(requires(right)(view))
        ADDRESSES.append(path(address, checked, given, name=name or view.__name__))
        return checked

    return decorate


def collected(modules: tuple[str, ...], addresses: list[URLPattern]) -> list[URLPattern]:
    """Import the modules at these paths of the dashboard, and return the addresses that they declare.

    An address with a fixed word is listed before one with a parameter in the same place.
    """
    for file in sorted(file for pattern in modules for file in DASHBOARD.glob(pattern)):
        importlib.import_module(".".join(("dashboard", *file.relative_to(DASHBOARD).with_suffix("").parts)))
    return sorted(addresses, key=lambda one: str(one.pattern).replace("<", "\uffff"))
