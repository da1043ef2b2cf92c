"""The checks over REST."""

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from dashboard.access.authorisation import Right
from dashboard.doctor.run import findings, refuse_second
from dashboard.web.rest.endpoint import Endpoint, at, fieldless
from dashboard.web.rest.lines import LinesRenderer, lines_response


@at("doctor", "api_doctor")
class Doctor(Endpoint):
    rights = {"POST": Right.ADMINISTER}
    renderer_classes = [JSONRenderer, LinesRenderer]

    @fieldless(responses={(200, "application/x-ndjson"): OpenApiTypes.STR})
    def post(self, request: Request) -> StreamingHttpResponse:
        """Makes the checks of `manage.py doctor` on the machine that answers, with a line of JSON for each when it is made.

        A line has `check`, `title`, `state` (`ok`, `wrong` or `skipped`), `faults` (sentences: what is wrong, and what to do)
        and `why` (why it was skipped). If the checks cannot go on, the last line has `error`. Whoever closes the connection
        breaks the checks off.
        """
        refuse_second()
        return lines_response(findings())
