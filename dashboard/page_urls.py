"""Addresses of the pages: those that views give themselves in the modules of pages, and of signing in and out."""

import importlib
from pathlib import Path

from django.contrib.auth.views import LogoutView
from django.urls import URLPattern, path

from dashboard.accounts.pages import sign_in
from dashboard.web.addresses import ADDRESSES

for _file in sorted(Path(__file__).parent.glob("*/*pages.py")):
    importlib.import_module(f"dashboard.{_file.parent.name}.{_file.stem}")


def _words_first(route: URLPattern) -> str:
    """Return a key by which an address with a word goes before one that takes anything in its place."""
    return str(route.pattern).replace("<", "\uffff")


urlpatterns = [
    *sorted(ADDRESSES, key=_words_first),
    path("sign-in", sign_in, name="sign_in"),
    path("sign-out", LogoutView.as_view(), name="sign_out"),
]
