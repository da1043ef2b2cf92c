"""The button *Export* of a release's page."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right, actor_of
from dashboard.catalog.selectors import model_get
from dashboard.exports.sending import release_export as begin
from dashboard.releases.selectors import release_get
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import post


@post("models/<str:name>/releases/<int:number>/export", Right.OPERATE)
def release_export(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Begin to export a release, and show the job."""
    found = release_get(model_get(name), number)
    try:
        job = begin(release=found, address=request.POST.get("address", ""), actor=actor_of(request))
    except DashboardError as error:
        messages.error(request, sentence(error.message))
        return redirect("release", name, number)
    return redirect("job", pk=job.pk)
