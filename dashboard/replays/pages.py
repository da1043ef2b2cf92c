"""The pages of replays: those of a capture with a form and the gate of the model, and one with its pictures."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from dashboard.access.authorisation import CLIENT_DATA, Right, actor_of
from dashboard.captures.selectors import capture_get, may_read
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import version_get, versions
from dashboard.drift.picture import HEIGHT
from dashboard.models import Replay
from dashboard.releases.replay_gates import gate_in_words
from dashboard.replays import selectors as select
from dashboard.replays.picture import BIN_NAMES, latencies_of, output_bars
from dashboard.replays.services import ABSOLUTE, CLIENTS, RELATIVE, replay_delete, replay_gate_set, replay_start
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.shared.repository_errors import repository_errors
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import SELECTABLE, call_service, page_of, respond, whole_number

_REPLAYS = "models/<str:name>/captures/<uuid:capture>/replays"


@get(_REPLAYS, Right.VIEW)
def replays(request: HttpRequest, name: str, capture: str) -> HttpResponse:
    """Show the replays of a capture, and the forms of a new one and of the gate. ?version=: preselected."""
    return respond(request, "replays/replays", _context(request, name, capture))


@post(f"{_REPLAYS}/start", CLIENT_DATA, name="replay_start", page="replays")
def start(request: HttpRequest, name: str, capture: str) -> HttpResponse:
    """Begin a replay, and show it; if that is refused, keep the form."""
    context, given = _context(request, name, capture), request.POST
    try:
        found = replay_start(
            capture=context["capture"],
            version=version_get(context["model"], whole_number(given.get("version", "")) or 0),
            actor=actor_of(request),
            absolute=_number(given, "absolute"),
            relative=_number(given, "relative"),
            clients=whole_number(given.get("clients", "")) or CLIENTS,
        )
    except DashboardError as error:
        return _refused(request, context, error, "form")
    return redirect("replay", name, capture, found.pk)


@post(f"{_REPLAYS}/gate", Right.OPERATE, name="replay_gate", page="replays")
def gate(request: HttpRequest, name: str, capture: str) -> HttpResponse:
    """Make a replay of this capture the gate of the model, or remove the gate; if that is refused, keep the form."""
    context, given = _context(request, name, capture), request.POST
    remove = "remove" in given
    try:
        numbers: dict[str, Any] = {field: _number(given, field) for field in ("most_percent", "absolute", "relative")}
        replay_gate_set(
            model=context["model"],
            actor=actor_of(request),
            capture="" if remove else str(context["capture"].pk),
            most_p99_times=_number(given, "most_p99_times"),
            **{field: number for field, number in numbers.items() if number is not None},
        )
    except DashboardError as error:
        return _refused(request, context, error, "gate_form")
    messages.success(request, "The model has no replay gate any more." if remove else "The replay gate is set.")
    return redirect("replays", name, capture)


@get(f"{_REPLAYS}/<int:pk>", Right.VIEW)
def replay(request: HttpRequest, name: str, capture: str, pk: int) -> HttpResponse:
    return respond(request, "replays/replay", _replay_context(request, name, capture, pk))


@post(f"{_REPLAYS}/<int:pk>/worst", CLIENT_DATA, name="replay_worst", page="replay")
def worst(request: HttpRequest, name: str, capture: str, pk: int) -> HttpResponse:
    """Show a replay with the requests that differ most, after an audit entry. It is a POST, so that no link reads them."""
    context = _replay_context(request, name, capture, pk)
    with repository_errors():
        context["worst"] = select.worst_requests(context["replay"], actor_of(request))
    return render(request, "replays/replay.html", context)


@post(f"{_REPLAYS}/<int:pk>/delete", CLIENT_DATA, name="replay_delete")
def delete(request: HttpRequest, name: str, capture: str, pk: int) -> HttpResponse:
    found: Replay = _replay_context(request, name, capture, pk)["replay"]
    done = "The replay is deleted, with the answers that it kept."
    return call_service(request, replay_delete, done, "replays", name, capture, replay=found)


def _replay_context(request: HttpRequest, name: str, capture: str, pk: int) -> dict[str, Any]:
    head = model_context(name, "playground")
    found = select.replay_get(capture_get(head["model"], capture), pk)
    wanted = found.capture.wanted["inputs"]
    return {
        **head,
        "capture": found.capture,
        "replay": found,
        "latencies": latencies_of(found.figures),
        "outputs": output_bars(found.figures),
        "bin_names": BIN_NAMES,
        "height": HEIGHT,
        "rounded": sorted(name for name, mask in wanted.items() if mask["rule"] == "round"),
        "may_read": may_read(actor_of(request), head["model"]),
        "kept": found.differences.count(),
    }


def _context(request: HttpRequest, name: str, capture: str) -> dict[str, Any]:
    head = model_context(name, "playground")
    model, found = head["model"], capture_get(head["model"], capture)
    gate = model.replay_gate
    own = gate if gate.get("capture") == str(found.pk) else {}
    tolerance = {"absolute": f"{own.get('absolute', ABSOLUTE):g}", "relative": f"{own.get('relative', RELATIVE):g}"}
    times = own.get("most_p99_times")
    return {
        **head,
        "capture": found,
        "page": page_of(request, select.replays(found)),
        "versions": versions(model).filter(state=VersionState.PUBLISHED)[:SELECTABLE],
        "form": {**tolerance, "version": request.GET.get("version", ""), "clients": str(CLIENTS)},
        "gate": gate_in_words(gate) if gate else "",
        "gate_is_own": bool(own),
        "gate_form": {
            **tolerance,
            "most_percent": f"{own.get('most_percent', 1):g}",
            "most_p99_times": "" if times is None else f"{times:g}",
        },
        "may_read": may_read(actor_of(request), model),
    }


def _refused(request: HttpRequest, context: dict[str, Any], error: DashboardError, form: str) -> HttpResponse:
    typed = {field: request.POST.get(field, value) for field, value in context[form].items()}
    problems = {one.field: sentence(one.message) for one in error.problems} if isinstance(error, Invalid) else {}
    context |= {form: typed, "refused": sentence(error.message), f"{form}_errors": problems}
    return render(request, "replays/replays.html", context, status=status_of(error))


def _number(given: QueryDict, field: str) -> float | None:
    text = given.get(field, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise Invalid.at(field, f"'{text[:40]}' is not a number") from None
