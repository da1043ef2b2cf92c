"""Pages that import a TorchServe model store: choosing an allowed folder or archives, a preview, and continuing an import."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Right, actor_of
from dashboard.imports.services import checked_params, import_create, import_preview, import_resume
from dashboard.imports.sources import import_folders, unreadable_folders
from dashboard.jobs.selectors import job_get
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service


@get("models/import", Right.UPLOAD_CODE)
def store_import(request: HttpRequest) -> HttpResponse:
    """Show the page of imports; with ?folder= also a preview of that folder."""
    return _page(request, request.GET.get("folder", ""))


@post("models/import/start", Right.UPLOAD_CODE, page="store_import")
def store_import_start(request: HttpRequest) -> HttpResponse:
    folder = request.POST.get("folder", "")
    try:
        job = import_create(actor=actor_of(request), folder=folder)
    except DashboardError as error:
        return _page(request, "", refused=sentence(error.message))
    return redirect("job", pk=job.pk)


@post("jobs/<int:pk>/resume", Right.UPLOAD_CODE, name="import_resume")
def resume(request: HttpRequest, pk: int) -> HttpResponse:
    return call_service(request, import_resume, "The import goes on.", "jobs", job=job_get(pk))


def _page(request: HttpRequest, folder: str, refused: str = "") -> HttpResponse:
    context: dict[str, object] = {"folders": import_folders(), "unreadable": unreadable_folders()}
    context |= {"folder": folder, "refused": refused}
    if folder:
        try:
            report = import_preview(params=checked_params(actor=actor_of(request), folder=folder))
        except DashboardError as error:
            context["refused"] = sentence(error.message)
        else:
            context["report"] = report
            context["new"] = sum(row["outcome"] == "would" for row in report["rows"])
    return render(request, "imports/store.html", context, status=400 if context["refused"] else 200)
