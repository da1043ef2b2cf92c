"""Pages that fetch the files of an upload from a source, and continue that."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right, actor_of
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import sentence
from dashboard.uploads.fetching import upload_fetch, upload_fetch_again
from dashboard.uploads.pages import new_model_page
from dashboard.uploads.selectors import name_is_taken, upload_get
from dashboard.uploads.sources.table import SOURCES
from dashboard.web.addresses import post
from dashboard.web.pages import call_service
from repository.core.errors import RepositoryError
from repository.core.layout import check_name


@post("models/new/fetch", Right.UPLOAD_DATA, page="model_new")
def source_fetch(request: HttpRequest) -> HttpResponse:
    """Begin an upload from a source; if that is refused, show the form again with the reason at its field."""
    typed = {name: text for name, text in request.POST.items() if isinstance(text, str)}
    kind, name, for_model = typed.get("kind", ""), typed.get("model", "").strip(), typed.get("for_model", "")
    error = _name_error(name, is_new=not for_model)
    if error:
        return new_model_page(request, name, kind, typed=typed, name_error=error, refused=error)
    try:
        upload = upload_fetch(actor=actor_of(request), model_name=name, source=typed, new_model=not for_model)
    except DashboardError as refusal:
        said = sentence(refusal.message)
        field = next((one.field for one in getattr(refusal, "problems", []) if one.field), "")
        first = SOURCES[kind].fields[0].name if kind in SOURCES else ""
        return new_model_page(request, name, kind, typed=typed, errors={field or first: said}, refused=said)
    return redirect("upload", pk=upload.pk)


@post("uploads/<uuid:pk>/fetch", Right.UPLOAD_DATA)
def upload_fetch_continue(request: HttpRequest, pk: str) -> HttpResponse:
    found = upload_get(pk)
    return call_service(request, upload_fetch_again, "The files are fetched further.", "upload", pk, upload=found)


def _name_error(name: str, *, is_new: bool) -> str:
    """Return why a model cannot get a name, as a sentence; "" if it can, or if the name is taken from the place."""
    try:
        if name:
            check_name(name)
    except RepositoryError as error:
        return sentence(error.message)
    if name and is_new and name_is_taken(name):
        return f"There is a model “{name}” already: take another name, or open that model to upload a version of it."
    return ""
