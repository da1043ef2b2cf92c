"""The page of an upload, from a file in the browser to a version: upload, inspect, configure, publish."""

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.template.loader import render_to_string
from django.urls import reverse

from dashboard.access.authorisation import Right, actor_of
from dashboard.catalog import selectors as select
from dashboard.catalog.archives import archive_in
from dashboard.configuration.callers import callers_after
from dashboard.configuration.clients import for_clients
from dashboard.configuration.editor import base_release, editor_context, preview_of, preview_response, refusal_for
from dashboard.conversions.recipes.table import converted_kinds
from dashboard.jobs.services import ENDED
from dashboard.models import Model, Upload
from dashboard.releases.services import changed_by_hand
from dashboard.servers.selectors import answers, production_servers
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import format_name, sentence
from dashboard.templatetags.units import size
from dashboard.uploads.conversion_pages import conversion_context, start_conversion
from dashboard.uploads.fetching import source_title
from dashboard.uploads.publication import upload_publish
from dashboard.uploads.review import Review, arriving_version, upload_review
from dashboard.uploads.selectors import existing_model, free_name, missing_paths, name_is_taken, upload_get
from dashboard.uploads.services import upload_cancel
from dashboard.uploads.source_forms import source_forms
from dashboard.uploads.states import UNFINISHED
from dashboard.uploads.tensors import signature_with
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service
from repository.config.document import Document
from repository.files.foreign_formats import as_json

STEPS = (("upload", "Upload"), ("inspect", "Inspect"), ("configure", "Configure"), ("publish", "Publish"))
# State of an upload -> the index of the step that is under way.
_AT = {
    UploadState.RECEIVING: 0,
    UploadState.RECEIVED: 1,
    UploadState.INSPECTING: 1,
    UploadState.CONVERTING: 1,
    UploadState.INSPECTED: 2,
    UploadState.PUBLISHING: 3,
    UploadState.PUBLISHED: 4,
}


@get("models/new", Right.UPLOAD_DATA)
def model_new(request: HttpRequest) -> HttpResponse:
    """Show the start of an upload. ?model=NAME: for a new version of a model, or its first one. ?from=NAME: from a source."""
    return new_model_page(request, request.GET.get("model", "").strip(), request.GET.get("from", ""))


def new_model_page(request: HttpRequest, name: str, source: str, **more: Any) -> HttpResponse:
    """Show the start of an upload. source: the name of the source whose form is open, or ""."""
    for_model = name if name and name_is_taken(name) and not more.get("name_error") else ""
    context = {
        "upload": None,
        "for_model": for_model,
        "existing": existing_model(for_model) if for_model else None,
        "name": name,
        "steps": _steps(None),
        "sources": source_forms(source, more.pop("typed", {}), more.pop("errors", {})),
        "source": source,
        "formats": _formats(),
        **more,
    }
    return _render(request, context)


@get("models/new/existing", Right.UPLOAD_DATA, name="model_existing")
def existing(request: HttpRequest) -> HttpResponse:
    """Ask what to do if a model has the name ?name=NAME already; 204 if the name is free."""
    name = request.GET.get("name", "").strip()
    if not name_is_taken(name):
        return HttpResponse(status=204)
    context = {"name": name, "existing": existing_model(name), "free": free_name(name)}
    return render(request, "uploads/existing.html", context)


@get("uploads/<uuid:pk>/", Right.VIEW)
def upload(request: HttpRequest, pk: str) -> HttpResponse:
    """Show an upload. ?batching=on: with the configuration that lets a model exported for one row take any number of rows."""
    found = upload_get(pk)
    batching = found.proposal.get("batching_config", "") if request.GET.get("batching") == "on" else ""
    return _page(request, found, typed=Document.read(batching) if batching else None, batching=bool(batching))


def _page(request: HttpRequest, found: Upload, **more: Any) -> HttpResponse:
    model = Model.objects.filter(name=found.model_name).first()
    context = {
        "upload": found,
        "for_model": found.model_name,
        "steps": _steps(found),
        "upload_open": found.state in UNFINISHED
        and found.state != UploadState.PUBLISHING
        and _is_theirs(request, found),
        "theirs_or_operates": _is_theirs(request, found) or actor_of(request).may(Right.OPERATE),
        "transfer": _transfer(found),
        "source_title": source_title(found),
        "fetching": found.is_fetched and found.job is not None and found.job.state not in ENDED,
        "formats": _formats() if found.state == UploadState.RECEIVING else None,
        "next_number": model.last_number + 1 if model else 1,
        **_read_last_request(request, found),
        **_proposal(request, found, more.pop("typed", None), more.pop("base", None)),
        **_published(found, model),
        **conversion_context(found, actor_of(request), more.pop("posted", None)),
        **more,
    }
    return _render(request, context)


def _read_last_request(request: HttpRequest, found: Upload) -> dict[str, Any]:
    """Return the last request to publish, and why it failed."""
    last = found.last_publication.request if found.last_publication else None
    after = "live" if last is None or last.make_live else "load" if last.load else "keep"
    after = after if actor_of(request).may(Right.OPERATE) else "keep"
    broken_off = sentence(found.error) if found.state == UploadState.INSPECTED else ""
    return {"note": last.note if last else "", "after": after, "broken_off": broken_off}


def _formats() -> dict[str, Any]:
    """Return the table of formats for the browser, with the names of those that a recipe may take."""
    return {**as_json(), "converted": converted_kinds()}


def _render(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    return render(request, "uploads/upload.html", context, status=400 if context.get("refused") else 200)


def _transfer(found: Upload) -> dict[str, Any]:
    files = [
        {"number": row.number, "path": row.path, "size": row.size, "received": row.received}
        for row in found.files.all()
    ]
    return {"id": str(found.pk), "files": files}


def _proposal(request: HttpRequest, found: Upload, typed: Document | None, base: int | None) -> dict[str, Any]:
    """Return the findings of the inspection, and the editor with the proposed or typed configuration."""
    if found.state == UploadState.FAILED and found.proposal:
        theirs = _is_theirs(request, found)
        return {"proposal": found.proposal, "missing": missing_paths(found) if theirs else [], "theirs": theirs}
    if found.state != UploadState.INSPECTED:
        return {}
    review = upload_review(upload=found, document=typed, base_release=base)
    archive = archive_in(found.folder / "version", request.GET.get("file", ""))
    return {
        "proposal": found.proposal,
        "archive": archive,
        "theirs": _is_theirs(request, found),
        "review": review,
        **_once_live(found, review.document),
        "refusal": _refusal(request, found, review),
        "preview_url": reverse("upload_preview", args=[found.pk]),
        **editor_context(review.document, archive=archive),
    }


def _refusal(request: HttpRequest, found: Upload, review: Review) -> str:
    """Return why this person cannot publish with that text now, as a sentence; "" if the person can."""
    model = Model.objects.filter(name=found.model_name).first()
    by_hand = changed_by_hand(model) if model is not None else ""
    return refusal_for(request, review.needs) or (sentence(by_hand) if by_hand else "")


def _once_live(found: Upload, document: Document) -> dict[str, Any]:
    """Return what changes once the upload is live with that text: for clients, and in the ensembles that call the model."""
    model = Model.objects.filter(name=found.model_name).first()
    if model is None:
        return {"clients": None, "callers": []}
    number, signature = model.last_number + 1, signature_with(found.proposal, document)
    served = {number, *document.aliases.values()}
    return {
        "clients": for_clients(model, number, signature),
        "callers": callers_after(model, signature, lambda: served),
    }


def _is_theirs(request: HttpRequest, found: Upload) -> bool:
    """Return whether the person may continue the upload: they began it, or administer."""
    return found.user == request.user or actor_of(request).may(Right.ADMINISTER)


def _published(found: Upload, model: Model | None) -> dict[str, Any]:
    if found.state != UploadState.PUBLISHED or model is None:
        return {}
    summary = select.model_summary(model)
    return {
        "version": found.versions.first(),
        "summary": summary,
        "finished": not summary.changing,
        "server_down": not any(map(answers, production_servers())),
    }


def _steps(found: Upload | None) -> list[tuple[str, str, str, str]]:
    """Return (key, title, done | past | now | failed | later, details) of each step. past: before the step that failed."""
    at = _AT.get(UploadState(found.state), 0) if found else 0
    details = _details(found)
    rows = []
    for index, (key, title) in enumerate(STEPS):
        word = "done" if index < at else "now" if index == at else "later"
        if found and found.state == UploadState.FAILED:
            word = "failed" if index == _failed_step(found) else "past" if index < _failed_step(found) else "later"
        rows.append((key, title, word, details[key]))
    return rows


def _failed_step(found: Upload) -> int:
    return 1 if found.job_id and not found.is_fetched else 0


def _details(found: Upload | None) -> dict[str, str]:
    details = {
        "upload": "Choose a file or a folder",
        "inspect": "Format, inputs and outputs are read",
        "configure": "Review batching and instances",
        "publish": "A new version, served when you say so",
    }
    if found is None:
        return details
    received, whole = found.received_bytes, found.size_bytes
    details["upload"] = f"{size(received)} of {size(whole)}" if received < whole else f"{size(whole)}, all received"
    if found.state == UploadState.FAILED:
        details["inspect"] = "Cannot be published"
    elif found.state == UploadState.CONVERTING:
        details["inspect"] = (found.job.step if found.job else "") or "Converting"
    elif found.proposal:
        problems = [problem for problem in found.proposal.get("problems", []) if problem["severity"] != "note"]
        details["inspect"] = f"{format_name(found.proposal.get('format', ''))}, " + (
            f"{len(problems)} finding{'s' if len(problems) != 1 else ''}" if problems else "nothing wrong"
        )
    elif found.job is not None and found.job.step and not found.is_fetched:
        details["inspect"] = found.job.step
    if found.state in (UploadState.PUBLISHING, UploadState.PUBLISHED):
        details["configure"] = "Reviewed"
    if found.last_publication is not None and found.state == UploadState.PUBLISHING:
        details["publish"] = f"Version {found.last_publication.number}, {found.job.progress if found.job else 0} %"
    if found.state == UploadState.PUBLISHED:
        version = found.versions.first()
        details["publish"] = f"Version {version.number}" if version else "Published"
    return details


@post("uploads/<uuid:pk>/preview", Right.VIEW, name="upload_preview")
def preview(request: HttpRequest, pk: str) -> JsonResponse:
    """Answer with the preview of a text, why this person may not publish it, and the changes once it is live, in HTML."""
    found = upload_get(pk)
    given = preview_of(request, found.model_name, arriving_version(found))
    refused = _refusal(request, found, upload_review(upload=found, document=given.document))
    return preview_response(
        given, refused, live=render_to_string("uploads/once_live.html", _once_live(found, given.document))
    )


@post("uploads/<uuid:pk>/cancel", Right.UPLOAD_DATA, name="upload_cancel")
def cancel(request: HttpRequest, pk: str) -> HttpResponse:
    found = upload_get(pk)
    done = "The upload is cancelled; what was received is removed."
    return call_service(request, upload_cancel, done, "jobs", upload=found)


@post("uploads/<uuid:pk>/convert", Right.UPLOAD_DATA, name="upload_convert", page="upload")
def convert(request: HttpRequest, pk: str) -> HttpResponse:
    """Start a conversion; if it is refused, keep the form."""
    found = upload_get(pk)
    try:
        start_conversion(request, found)
    except DashboardError as error:
        said = sentence(error.message)
        page = _page(request, upload_get(pk), posted=request.POST, not_begun=said)
        page.status_code = 400
        return page
    return redirect("upload", pk=found.pk)


@post("uploads/<uuid:pk>/publish", Right.UPLOAD_DATA, name="upload_publish", page="upload")
def publish(request: HttpRequest, pk: str) -> HttpResponse:
    """Publish the posted text; if it is refused, keep it in the form."""
    found = upload_get(pk)
    document = Document.read(request.POST.get("text", "").replace("\r\n", "\n"))
    base = base_release(request)
    note, after = request.POST.get("note", "").strip(), request.POST.get("after", "keep")
    try:
        upload_publish(
            upload=found,
            actor=actor_of(request),
            document=document,
            base_release=base,
            note=note,
            make_live=after == "live",
            load=after in ("live", "load"),
        )
    except DashboardError as error:
        said = sentence(error.message)
        return _page(request, upload_get(pk), typed=document, base=base, note=note, after=after, refused=said)
    return redirect("upload", pk=found.pk)
