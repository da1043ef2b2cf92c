"""Every HTTP address that Django answers: REST and pages. Health checks are answered before it (web.health)."""

from django.urls import include, path

handler404 = "dashboard.web.errors.page_not_found"
handler500 = "dashboard.web.errors.server_error"

urlpatterns = [
    path("api/v1/", include("dashboard.rest_urls")),
    path("", include("dashboard.page_urls")),
]
