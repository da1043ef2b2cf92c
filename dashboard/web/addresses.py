"""Addresses of pages: each view declares its own, with its methods and the right that it needs.

    @get("models/<str:name>/log", Right.VIEW)
    def model_log(request: HttpRequest, name: str) -> HttpResponse:

Unless another name is given, `reverse` finds the address by the view's name. dashboard.page_urls collects the addresses.
"""

import importlib
from collections.abc import Callable
from pathlib import Path

from django.urls import URLPattern, path
from django.views.decorators.http import require_http_methods

from dashboard.access.authorisation import Answer, Arguments, Right, View, requires

DASHBOARD = Path(__file__).resolve().parents[1]
ADDRESSES: list[URLPattern] = []


def get(
    address: str, right: Right, name: str = "", **given: object
) -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    """Give a view an address at which it answers GET. given: arguments of the view that are not part of the address."""
    return _at(["GET"], address, right, name, given)


def post(address: str, right: Right, name: str = "") -> Callable[[View[Arguments, Answer]], View[Arguments, Answer]]:
    return _at(["POST"], address, right, name, {})


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
