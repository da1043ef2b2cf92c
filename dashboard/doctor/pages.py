"""The page that makes the checks. It asks for them over REST, and shows each when it is made."""

import platform

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from dashboard.access.authorisation import Right
from dashboard.doctor.table import CHECKS
from dashboard.web.addresses import get


@get("doctor/", Right.ADMINISTER)
def doctor(request: HttpRequest) -> HttpResponse:
    return render(request, "servers/doctor.html", {"checks": CHECKS, "machine": platform.node()})
