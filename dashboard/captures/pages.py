"""The pages of captures: those of a model, with a form for a new one; and one with its counts and its newest requests."""

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from dashboard.access.authorisation import CLIENT_DATA, Right, actor_of
from dashboard.captures.masks import datatypes_of
from dashboard.captures.selectors import capture_get, captures, may_read, newest_requests
from dashboard.captures.services import capture_delete, capture_start, capture_stop
from dashboard.catalog.pages import model_context
from dashboard.models import Capture
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.shared.repository_errors import repository_errors
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond

_CAPTURE = "models/<str:name>/captures/<uuid:pk>"
_DEFAULTS = {
    "percent": "5",
    "hours": "24",
    "mib": "1024",
    "keep_days": "30",
    "errors_only": "",
    "accounts": "",
    "masks": "",
}


@get("models/<str:name>/captures", Right.VIEW)
def model_captures(request: HttpRequest, name: str) -> HttpResponse:
    return respond(request, "captures/model", _model_context(request, name))


@post("models/<str:name>/captures/start", CLIENT_DATA, name="capture_start", page="model_captures")
def start(request: HttpRequest, name: str) -> HttpResponse:
    """Start a capture, and show it; if that is refused, keep the form."""
    context = _model_context(request, name)
    try:
        found = capture_start(
            model=context["model"],
            actor=actor_of(request),
            percent=_number(request.POST, "percent"),
            hours=_number(request.POST, "hours"),
            mib=int(_number(request.POST, "mib")),
            keep_days=int(_number(request.POST, "keep_days")),
            errors_only=bool(request.POST.get("errors_only")),
            accounts=[one for one in request.POST.get("accounts", "").split(",") if one.strip()],
            inputs=_masks(request.POST, "input."),
            outputs=_masks(request.POST, "output."),
            consent=bool(request.POST.get("consent")),
        )
    except DashboardError as error:
        typed = {key: request.POST.get(key, "") for key in _DEFAULTS}
        context |= {
            "refused": sentence(error.message),
            "typed": typed,
            "tensors": _tensors(context["model"], request.POST),
        }
        return render(request, "captures/model.html", context, status=status_of(error))
    return redirect("capture", name, found.pk)


@get(_CAPTURE, Right.VIEW)
def capture(request: HttpRequest, name: str, pk: str) -> HttpResponse:
    return respond(request, "captures/capture", _capture_context(request, name, pk))


@post(f"{_CAPTURE}/requests", CLIENT_DATA, name="capture_requests", page="capture")
def requests(request: HttpRequest, name: str, pk: str) -> HttpResponse:
    """Show a capture with its newest requests, after an audit entry. It is a POST, so that no link or prefetch reads them."""
    context = _capture_context(request, name, pk)
    with repository_errors():
        context["requests"] = newest_requests(context["capture"], actor_of(request))
    return render(request, "captures/capture.html", context)


def _capture_context(request: HttpRequest, name: str, pk: str) -> dict[str, Any]:
    head = model_context(name, "playground")
    found = capture_get(head["model"], pk)
    return {
        **head,
        "capture": found,
        "counts": found.counts,
        "dropped": sum(found.counts["dropped"].values()) if found.counts else 0,
        "percent": found.wanted["share"] * 100,
        "masks": {**found.wanted["inputs"], **found.wanted["outputs"]},
        "may_read": may_read(actor_of(request), head["model"]),
    }


@post(f"{_CAPTURE}/stop", CLIENT_DATA, name="capture_stop")
def stop(request: HttpRequest, name: str, pk: str) -> HttpResponse:
    found = _found(name, pk)
    return call_service(request, capture_stop, "The capture has ended.", "capture", name, pk, capture=found)


@post(f"{_CAPTURE}/delete", CLIENT_DATA, name="capture_delete")
def delete(request: HttpRequest, name: str, pk: str) -> HttpResponse:
    done = "The capture is deleted, with all that was kept."
    return call_service(request, capture_delete, done, "model_captures", name, capture=_found(name, pk))


def _found(name: str, pk: str) -> Capture:
    return capture_get(model_context(name, "playground")["model"], pk)


def _model_context(request: HttpRequest, name: str) -> dict[str, Any]:
    head = model_context(name, "playground")
    return {
        **head,
        "page": page_of(request, captures(head["model"])),
        "typed": _DEFAULTS,
        "has_tokens": settings.REQUIRE_TOKENS,
        "tensors": _tensors(head["model"], QueryDict()),
    }


def _tensors(model: Any, typed: QueryDict) -> list[tuple[str, str, str, str]]:
    """Return (field, name, datatype, typed mask) of every input and output."""
    sides = zip(("input.", "output."), datatypes_of(model), strict=True)
    return [
        (prefix + name, name, datatype, typed.get(prefix + name, ""))
        for prefix, side in sides
        for name, datatype in side.items()
    ]


def _masks(given: QueryDict, prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): str(words) for key, words in given.items() if key.startswith(prefix) and words}


def _number(given: QueryDict, field: str) -> float:
    try:
        return float(given.get(field) or _DEFAULTS[field])
    except ValueError:
        raise Invalid.at(field, f"expected a number for '{field}'") from None
