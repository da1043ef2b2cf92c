from django.urls import include, path

from dashboard.health import healthz

handler404 = "dashboard.views.errors.page_not_found"

urlpatterns = [
    path("healthz", healthz, name="health"),
    path("api/v1/", include("dashboard.api.urls")),
    path("", include("dashboard.views.urls")),
]
