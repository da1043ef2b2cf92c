"""The addresses of pages. Views declare them in modules named `pages`; this module adds signing in and out."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from dashboard.accounts.pages import sign_in
from dashboard.web.addresses import ADDRESSES, collected

urlpatterns = [
    *collected(("*/*pages.py",), ADDRESSES),
    path("sign-in", sign_in, name="sign_in"),
    path("sign-out", LogoutView.as_view(), name="sign_out"),
]
