"""The page that makes the checks. It asks for them over REST, and shows each when it is made."""

import platform

from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.doctor.table import CHECKS
from dashboard.web.addresses import get
from dashboard.web.pages import respond


@get("doctor/", Right.ADMINISTER)
def doctor(request: HttpRequest) -> HttpResponse:
    return respond(request, "servers/doctor", {"checks": CHECKS, "machine": platform.node()})
