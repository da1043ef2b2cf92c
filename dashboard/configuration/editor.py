"""The editor of a configuration on pages of models and uploads: its template's context, and its JSON previews."""

import json
from dataclasses import asdict, fields

from django.http import HttpRequest, JsonResponse

from dashboard.access.authorisation import actor_of
from dashboard.catalog.archives import ModelArchive
from dashboard.configuration import services
from dashboard.configuration.fields import DATA_TYPES
from dashboard.configuration.model_files import Arriving
from dashboard.configuration.needs import Need, refusal, unmet
from dashboard.configuration.running_fields import CONTROLS
from dashboard.shared.exceptions import Invalid
from dashboard.templatetags.slipway import sentence
from repository.config.backends import KINDS as BACKEND_KINDS
from repository.config.document import Document

RESIDENCIES = (
    ("", "while it is loaded"),
    ("pinned", "while it is loaded, whatever the memory budget"),
    ("on_demand", "from a request on, for a while"),
    ("evictable", "until another model needs the room"),
)
WARMUP_CONTENTS = (("zeros", "zeros"), ("random", "random numbers"), ("own", "as in the text"))
KINDS = (("AUTO", "whatever there is"), ("CPU", "CPU"), ("GPU", "GPU"), ("MODEL", "as the model says"))


def editor_context(
    document: Document, applied: Document | None = None, archive: ModelArchive | None = None
) -> dict[str, object]:
    """Return the context of configuration/config_editor.html for the configuration that it shows first.

    applied: the configuration that changes are compared with, by default `document`. archive: the model's archive, whose
    settings apply where the text has none.
    """
    original = document if applied is None else applied
    settings = [row for row in archive.settings if row.meaning] if archive else []
    shown = services.fields_in(document)
    kind = BACKEND_KINDS.get(str(shown.get("backend", "")))
    return {
        "archive_settings": settings,
        "archive_says": bool(settings) or (kind is not None and bool(kind.settings_file)),
        "text": document.text,
        "fields": shown,
        "original": {"text": original.text, "fields": services.fields_in(original)},
        "tensor_sides": (("inputs", "Inputs"), ("outputs", "Outputs")),
        "kinds": KINDS,
        "data_types": [name for name in DATA_TYPES if name != "INVALID"],
        "backends": tuple(BACKEND_KINDS),
        "backends_with_controls": [kind for kind in BACKEND_KINDS.values() if kind.controls],
        "residencies": RESIDENCIES,
        "controls": CONTROLS,
        "warmup_contents": WARMUP_CONTENTS,
        "blank_policy": {
            "level": "",
            "queue_max_size": 0,
            "queue_timeout_microseconds": 0,
            "queue_timeout_action": "REJECT",
        },
        "blank_warmup": {"name": "", "batch_size": 1, "count": 1, "content": "zeros"},
        "blank_parameter": {"key": "", "value": ""},
        "blank_group": {"count": 1, "kind": "AUTO", "gpus": [], "name": ""},
        "blank_tensor": {"name": "", "data_type": "FP32", "dims": [], "reshape": None},
    }


def base_release(request: HttpRequest) -> int | None:
    """Return the number of the release that a form was made from, None if it sends nothing, or 0 if it sends no number."""
    given = request.POST.get("base_release", "")
    if not given:
        return None
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 10 else 0


def preview_of(request: HttpRequest, model_name: str, arriving: Arriving | None = None) -> services.ConfigPreview:
    """Return the preview of a request's JSON, {"text"} or {"base", "fields"}. Raises Invalid if the body is not a JSON object.

    arriving: the version that is to be published with the configuration.
    """
    try:
        given = json.loads(request.body)
    except (ValueError, RecursionError):
        raise Invalid("expected a JSON object") from None
    if not isinstance(given, dict):
        raise Invalid("expected a JSON object")
    laid_over = given.get("fields")
    if laid_over is not None:
        base = Document.read(str(given.get("base", "")))
        return services.config_preview(model_name=model_name, base=base, fields=laid_over, arriving=arriving)
    document = Document.read(str(given.get("text", "")))
    return services.config_preview(model_name=model_name, document=document, arriving=arriving)


def preview_response(found: services.ConfigPreview, refused: str, **beside: str) -> JsonResponse:
    """Answer with a preview. refused: the right that the person lacks, and why; "" for none. beside: more keys for a page."""
    said = {
        field.name: getattr(found, field.name)
        for field in fields(found)
        if field.name not in ("document", "needs", "problems")
    }
    problems = [asdict(problem) for problem in found.problems]
    more = {"valid": found.valid, "effect_sentence": found.effect_sentence, "refused": refused, **beside}
    return JsonResponse({**said, "text": found.document.text, "problems": problems, **more})


def refusal_for(request: HttpRequest, needs: list[Need]) -> str:
    """Return the right that the person lacks for these needs, and why, as a sentence; "" if the person lacks no right."""
    missing = unmet(needs, actor_of(request).rights())
    return sentence(refusal(missing)) if missing else ""
