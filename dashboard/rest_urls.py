"""Addresses of the REST API below /api/v1/, which endpoints declare in the modules of REST."""

from dashboard.web.addresses import collected
from dashboard.web.rest.endpoint import ADDRESSES

urlpatterns = collected(("*/*rest.py", "web/rest/documentation.py"), ADDRESSES)
