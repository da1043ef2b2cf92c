"""A model's configuration: the form and the text, what a change would do, applying it, and going back."""

import json
from dataclasses import asdict, fields
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_http_methods, require_POST

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog import selectors as select
from dashboard.catalog.pages import model_context
from dashboard.configuration import drift, services
from dashboard.configuration.fields import DATA_TYPES
from dashboard.configuration.needs import Need, refusal, rights_of, unmet
from dashboard.models import Model
from dashboard.shared.exceptions import DashboardError, Invalid
from dashboard.templatetags.slipway import sentence
from dashboard.web.pages import act, back, respond

HISTORY = 30
KINDS = (("AUTO", "whatever there is"), ("CPU", "CPU"), ("GPU", "GPU"), ("MODEL", "as the model says"))


def editor_context(model_name: str, text: str) -> dict[str, Any]:
    """What parts/config_editor.html needs to begin with `text`."""
    preview = services.config_preview(model_name=model_name, text=text)
    return {
        "text": text,
        "fields": preview.fields,
        "tensor_sides": (("inputs", "Inputs"), ("outputs", "Outputs")),
        "kinds": KINDS,
        "data_types": [name for name in DATA_TYPES if name != "INVALID"],
        "blank_group": {"count": 1, "kind": "AUTO", "gpus": [], "name": ""},
        "blank_tensor": {"name": "", "data_type": "FP32", "dims": [], "reshape": None},
    }


@require_http_methods(["GET", "POST"])
@requires(Right.VIEW)
def model_configuration(request: HttpRequest, name: str) -> HttpResponse:
    if request.method == "POST":
        return _apply(request, name)
    return _page(request, name)


def _page(request: HttpRequest, name: str, text: str | None = None, refused: str = "") -> HttpResponse:
    context = model_context(name, "configuration")
    model: Model = context["model"]
    revision = select.current_revision(model)
    current = revision.text if revision else ""
    context |= editor_context(name, current if text is None else text)
    context |= {
        "revision": revision,
        "revisions": select.revisions(model)[:HISTORY],
        "preview_url": request.path + "/preview",
        "refused": sentence(refused),
    }
    response = respond(request, "model/configuration", context)
    response.status_code = 400 if refused else 200
    return response


@requires(Right.OPERATE)
def _apply(request: HttpRequest, name: str) -> HttpResponse:
    """Keeps what was typed when the text is refused."""
    model = select.model_get(name)
    text = request.POST.get("text", "").replace("\r\n", "\n")
    try:
        services.config_apply(
            model=model,
            text=text,
            actor=actor_of(request),
            summary=request.POST.get("summary", "").strip(),
            base_revision=base_revision(request),
        )
    except DashboardError as error:
        return _page(request, name, text, error.message)
    messages.success(request, "The configuration is applied.")
    return back(request, "model_configuration", name)


def base_revision(request: HttpRequest) -> int | None:
    """The configuration that a form was made from, where it says so."""
    given = request.POST.get("base_revision", "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else None


@require_POST
@requires(Right.VIEW)
def preview(request: HttpRequest, name: str) -> JsonResponse:
    """What a text, or fields laid over a text, would be: JSON {"text"} or {"base", "fields"}."""
    given = preview_of(request, name)
    return preview_response(given, refusal_for(request, given.needs))


def preview_of(request: HttpRequest, model_name: str) -> services.ConfigPreview:
    try:
        given = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Invalid("expected a JSON object") from None
    if not isinstance(given, dict):
        raise Invalid("expected a JSON object")
    laid_over = given.get("fields")
    if laid_over is not None:
        return services.config_preview(model_name=model_name, base=str(given.get("base", "")), fields=laid_over)
    return services.config_preview(model_name=model_name, text=str(given.get("text", "")))


def preview_response(found: services.ConfigPreview, refused: str) -> JsonResponse:
    """`refused`: which right this person lacks for it, and why; "" for none."""
    said = {
        field.name: getattr(found, field.name) for field in fields(found) if field.name not in ("needs", "problems")
    }
    problems = [asdict(problem) for problem in found.problems]
    more = {"valid": found.valid, "effect_sentence": found.effect_sentence, "refused": refused}
    return JsonResponse({**said, "problems": problems, **more})


def refusal_for(request: HttpRequest, needs: list[Need]) -> str:
    missing = unmet(needs, rights_of(actor_of(request)))
    return sentence(refusal(missing)) if missing else ""


@require_POST
@requires(Right.OPERATE)
def revert(request: HttpRequest, name: str, number: int) -> HttpResponse:
    model = select.model_get(name)
    revision = get_object_or_404(model.revisions, number=number)
    done = f"Revision {number} is applied again, as a new revision."
    given = {"revision": revision, "base_revision": base_revision(request)}
    return act(request, services.config_revert, done, "model_configuration", name, **given)


@require_POST
@requires(Right.OPERATE)
def drift_adopt(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = "The text on disk is adopted as a new revision."
    return act(request, drift.drift_adopt, done, "model_configuration", name, model=model)


@require_POST
@requires(Right.OPERATE)
def drift_overwrite(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = "The current revision is written over the text on disk."
    return act(request, drift.drift_overwrite, done, "model_configuration", name, model=model)
