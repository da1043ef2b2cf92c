"""The OpenAPI schema, and a page that browses it; both from this server alone."""

from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from dashboard.access.authorisation import Right


class Schema(SpectacularAPIView):
    rights = {"GET": Right.VIEW}


class Documentation(SpectacularSwaggerSplitView):
    rights = {"GET": Right.VIEW}
    url_name = "api_schema"
    template_name = "api/documentation.html"
