"""The installation as text over REST."""

import tempfile

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request

from dashboard.access.authorisation import Right
from dashboard.text.folder import installation, write_archive
from dashboard.web.rest.endpoint import Endpoint, at

_IN_MEMORY = 8 << 20


@at("export", "api_export")
class Export(Endpoint):
    rights = {"GET": Right.ADMINISTER}

    @extend_schema(responses={(200, "application/gzip"): OpenApiTypes.BINARY})
    def get(self, request: Request) -> FileResponse:
        """The installation as text, in a .tar.gz: the files that `manage.py export` writes."""
        stream = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 the response closes it
        write_archive(stream, installation())
        stream.seek(0)
        response = FileResponse(stream, as_attachment=True, filename="slipway.tar.gz", content_type="application/gzip")
        response["Cache-Control"] = "no-store"
        return response
