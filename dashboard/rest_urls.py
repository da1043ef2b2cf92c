"""Addresses of the REST API, below /api/v1/: those that endpoints give themselves in the modules of REST."""

from dashboard.web.addresses import collected
from dashboard.web.rest.endpoint import ADDRESSES

urlpatterns = collected(("*/*rest.py", "web/rest/documentation.py"), ADDRESSES)
