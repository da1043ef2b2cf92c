"""Every HTTP address that Django answers: REST, pages, and the older name of the readiness (web.health)."""

from django.urls import include, path

from dashboard.web.health import healthz

handler404 = "dashboard.web.errors.page_not_found"
handler500 = "dashboard.web.errors.server_error"

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("api/v1/", include("dashboard.rest_urls")),
    path("", include("dashboard.page_urls")),
]
