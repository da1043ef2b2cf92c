from django.urls import include, path

from dashboard.health import healthz

urlpatterns = [
    path("healthz", healthz, name="health"),
    path("api/v1/", include("dashboard.api.urls")),
    path("", include("dashboard.views.urls")),
]
