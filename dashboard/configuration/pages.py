"""The pages of a model's configuration: its form and text, previews, applying it, and earlier texts."""

from typing import NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog import selectors as select
from dashboard.catalog.archives import served_archive
from dashboard.catalog.pages import model_context
from dashboard.configuration import drift, services
from dashboard.configuration.drift import model_adopt
from dashboard.configuration.editor import base_release, editor_context, preview_of, preview_response, refusal_for
from dashboard.releases.selectors import lives_of, newest_release, serving_release, texts
from dashboard.shared.exceptions import DashboardError, Invalid, Outdated, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get_and_post, post
from dashboard.web.pages import back, call_service, respond
from repository.config.document import NOTHING, Document
from repository.config.lines import unified

HISTORY = 30


class Conflicting(NamedTuple):
    """The conflict of a person's text with a newer release. merged: one text with both changes; "" if the changes overlap."""

    release: int
    by: str
    theirs: str
    their_diff: str
    my_diff: str
    merged: str


@get_and_post("models/<str:name>/configuration", Right.VIEW)
def model_configuration(request: HttpRequest, name: str) -> HttpResponse:
    if request.method == "POST":
        return _apply(request, name)
    return configuration_page(request, name)


def configuration_page(
    request: HttpRequest,
    name: str,
    typed: Document | None = None,
    error: DashboardError | None = None,
    summary: str = "",
) -> HttpResponse:
    """Show the page. typed: the text that the form shows in place of the newest release's text. It was refused with `error`,
    and keeps its base release; without `error` it is a proposal. summary: the proposed reason for the change.
    """
    head = model_context(name, "configuration")
    model = head["model"]
    release = newest_release(model)
    current = release.document if release else NOTHING
    conflict = _conflict(error, typed or NOTHING) if isinstance(error, Outdated) else None
    base = base_release(request) if error and not conflict else None
    context = {
        **head,
        **editor_context(
            current if typed is None else typed, current, served_archive(model, head["summary"].loaded_versions)
        ),
        "release": release,
        "base_release": (release.number if release else 0) if base is None else base,
        "releases": SimpleLazyObject(lambda: lives_of(texts(model)[:HISTORY])),
        "serving_release": SimpleLazyObject(lambda: serving_release(model)),
        "preview_url": reverse("config_preview", args=[name]),
        "refused": sentence(error.message) if error else "",
        "proposed": typed is not None and error is None,
        "conflict": conflict,
        "typed_summary": request.POST.get("summary", summary),
    }
    response = respond(request, "configuration/configuration", context, parts=("serving", "history"))
    response.status_code = status_of(error) if error else 200
    return response


def _conflict(error: Outdated, typed: Document) -> Conflicting:
    base, theirs = error.base_text, error.current_text
    merged = typed.merged(Document.read(base), Document.read(theirs))
    return Conflicting(
        release=error.current_release,
        by=error.current_by,
        theirs=theirs,
        their_diff=unified(base, theirs, old_name="before", new_name=f"release {error.current_release}"),
        my_diff=unified(base, typed.text, old_name="before", new_name="yours"),
        merged=merged.text if merged is not None else "",
    )


@requires(Right.OPERATE)
def _apply(request: HttpRequest, name: str) -> HttpResponse:
    """Apply the posted text; if it is refused, show it again with the reason."""
    model = select.model_get(name)
    text = request.POST.get("text")
    if text is None:  # an empty text is a configuration, too
        return configuration_page(request, name, error=Invalid("the form came without a text; load the page again"))
    document = Document.read(text.replace("\r\n", "\n"))
    try:
        services.config_apply(
            model=model,
            document=document,
            actor=actor_of(request),
            summary=request.POST.get("summary", "").strip(),
            base_release=base_release(request),
        )
    except DashboardError as error:
        return configuration_page(request, name, document, error)
    messages.success(request, "The configuration is applied.")
    return back(request, "model_configuration", name)


@post("models/<str:name>/configuration/preview", Right.VIEW, name="config_preview")
def preview(request: HttpRequest, name: str) -> JsonResponse:
    """Answer with the preview of a text, or of fields laid over a text (configuration.editor.preview_of)."""
    given = preview_of(request, name)
    return preview_response(given, refusal_for(request, given.needs))


@post("models/<str:name>/drift/adopt", Right.OPERATE)
def drift_adopt(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = "The text on disk is adopted as a new release."
    return call_service(request, drift.drift_adopt, done, "model_configuration", name, model=model)


@post("models/<str:name>/drift/overwrite", Right.OPERATE)
def drift_overwrite(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = "The newest release is written over the text on disk."
    return call_service(request, drift.drift_overwrite, done, "model_configuration", name, model=model)


@post("models/<str:name>/adopt", Right.UPLOAD_CODE, name="model_adopt")
def models_adopt(request: HttpRequest, name: str) -> HttpResponse:
    done = f"{name} is managed from now on. It is not loaded by that."
    return call_service(request, model_adopt, done, "models", name=name)
