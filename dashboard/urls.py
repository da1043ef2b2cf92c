"""Every HTTP address: health, REST, pages."""

from django.urls import include, path

from dashboard.web.health import healthz

handler404 = "dashboard.web.errors.page_not_found"
handler500 = "dashboard.web.errors.server_error"

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", healthz, name="readyz"),
    path("api/v1/", include("dashboard.rest_urls")),
    path("", include("dashboard.page_urls")),
]
