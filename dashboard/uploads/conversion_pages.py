"""The part of an upload's page that offers recipes for its files, and starts a conversion."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.http import HttpRequest

from dashboard.access.authorisation import Actor, actor_of
from dashboard.conversions.recipes.table import BY_NAME, Option
from dashboard.models import Upload
from dashboard.shared.exceptions import Invalid
from dashboard.uploads.conversion import conversion_start
from dashboard.uploads.offers import NO_IMPORTS, Offer, offers_of, unkept_promises
from dashboard.uploads.selectors import uploads_of_parts
from dashboard.web.pages import whole_number


class Field(NamedTuple):
    """An option of a recipe with the value that its input shows."""

    option: Option
    value: Any


def conversion_context(upload: Upload, actor: Actor, posted: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return what the page shows of conversions. posted: a form that was refused, whose values are kept."""
    offers = offers_of(upload, actor)
    chosen = posted.get("recipe", "") if posted else upload.conversion.get("recipe", "")
    return {
        "offers": [(offer, _fields(offer, upload, posted), offer.recipe.name == chosen) for offer in offers],
        "imports": upload.conversion.get("imports", NO_IMPORTS),
        "unkept": {str(promise): sentence for promise, sentence in unkept_promises().items()} if offers else {},
        "parts": uploads_of_parts(upload),
        "unconverted": upload.conversion.get("error", ""),
        "lineages": upload.conversion.get("lineage", []),
    }


def start_conversion(request: HttpRequest, upload: Upload) -> None:
    """Start the conversion that a form asks for. Raises the errors of `conversion_start`."""
    recipe = BY_NAME.get(request.POST.get("recipe", ""))
    conversion_start(
        upload=upload,
        actor=actor_of(request),
        recipe=request.POST.get("recipe", ""),
        options={one.name: _read(one, request.POST) for one in recipe.options} if recipe else {},
        run_code="run_code" in request.POST,
        unprotected="unprotected" in request.POST,
    )


def _fields(offer: Offer, upload: Upload, posted: Mapping[str, str] | None) -> list[Field]:
    if posted is not None and posted.get("recipe") == offer.recipe.name:
        return [Field(one, posted.get(one.name, "")) for one in offer.recipe.options]
    last = upload.conversion.get("options", {}) if upload.conversion.get("recipe") == offer.recipe.name else {}
    return [Field(one, _as_text(one, last.get(one.name, one.default))) for one in offer.recipe.options]


def _as_text(option: Option, value: Any) -> str:
    if option.kind == "json":
        return json.dumps(value) if value else ""
    return ("on" if value else "") if option.kind == "switch" else str(value)


def _read(option: Option, posted: Mapping[str, str]) -> Any:
    """Return the value of an option in a form. Raises Invalid, at the option, for a text that is no such value."""
    text = posted.get(option.name, "").strip()
    if option.kind == "switch":
        return bool(text)
    if option.kind == "number":
        number = whole_number(text) if text else option.default
        if number is None:
            raise Invalid.at(option.name, f"'{option.name}' must be a whole number, not '{text[:40]}'")
        return number
    if option.kind == "json":
        try:
            return json.loads(text) if text else option.default
        except ValueError as error:
            raise Invalid.at(option.name, f"'{option.name}' must be JSON ({error})") from None
    return text
