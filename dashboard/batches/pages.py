"""The pages of batch jobs: those of a model, with a form for a new one, and one with its preview, progress and results."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Right, actor_of
from dashboard.batches.formats.table import SUFFIXES, Answer, Row
from dashboard.batches.selectors import batch_get, batch_jobs, may_read_sources, refusal_reasons
from dashboard.batches.services import (
    MOST_ERRORS,
    Preview,
    batch_create,
    batch_preview,
    batch_remove,
    batch_resume,
    batch_start,
)
from dashboard.catalog.pages import model_context
from dashboard.models import BatchJob
from dashboard.servers.selectors import offered_servers, servers
from dashboard.servers.services import LOCAL
from dashboard.shared.choices import JobState
from dashboard.shared.exceptions import DashboardError
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond, whole_number

_PROPOSED = "*"  # the choice of the proposed columns, if there are several
_SHOWN_COLUMNS = 8  # of a preview


@get("models/<str:name>/batches", Right.VIEW)
def model_batches(request: HttpRequest, name: str) -> HttpResponse:
    return respond(request, "batches/model", _model_context(request, name))


@post("models/<str:name>/batches/create", Right.OPERATE, page="model_batches")
def batch_create_from_source(request: HttpRequest, name: str) -> HttpResponse:
    """Make a batch job of a folder or bucket, and show it."""
    source = request.POST.get("source", "").strip()
    try:
        batch = batch_create(actor=actor_of(request), model_name=name, source=source)
    except DashboardError as error:
        context = {**_model_context(request, name), "refused": sentence(error.message), "source": source}
        return render(request, "batches/model.html", context, status=400)
    return redirect("batch", pk=batch.pk)


@get("batches/<uuid:pk>/", Right.VIEW)
def batch(request: HttpRequest, pk: str) -> HttpResponse:
    found = batch_get(pk, actor_of(request))
    return respond(request, "batches/batch", _context(request, found))


@post("batches/<uuid:pk>/preview", Right.INFER, name="batch_preview", page="batch")
def preview(request: HttpRequest, pk: str) -> HttpResponse:
    """Show the answers of the model to the first rows, with the columns of the form."""
    found = batch_get(pk, actor_of(request))
    return render(request, "batches/batch.html", _context(request, found, _mapping(request), ask=True))


@post("batches/<uuid:pk>/start", Right.INFER, name="batch_start", page="batch")
def start(request: HttpRequest, pk: str) -> HttpResponse:
    """Start a batch job; if that is refused, keep the form."""
    found, mapping = batch_get(pk, actor_of(request)), _mapping(request)
    try:
        most = whole_number(request.POST.get("most_errors", ""))
        batch_start(
            batch=found,
            actor=actor_of(request),
            mapping=mapping,
            version=request.POST.get("version", ""),
            server=request.POST.get("server", ""),
            most_errors=MOST_ERRORS if most is None else most,
        )
    except DashboardError as error:
        context = {**_context(request, found, mapping), "refused": sentence(error.message)}
        return render(request, "batches/batch.html", context, status=400)
    return redirect("batch", pk=pk)


@post("batches/<uuid:pk>/resume", Right.INFER, name="batch_resume", page="batch")
def resume(request: HttpRequest, pk: str) -> HttpResponse:
    found = batch_get(pk, actor_of(request))
    try:
        most = whole_number(request.POST.get("most_errors", ""))
    except DashboardError as error:
        context = {**_context(request, found), "refused": sentence(error.message)}
        return render(request, "batches/batch.html", context, status=400)
    return call_service(request, batch_resume, "The batch job goes on.", "batch", pk, batch=found, most_errors=most)


@post("batches/<uuid:pk>/remove", Right.INFER, name="batch_remove")
def remove(request: HttpRequest, pk: str) -> HttpResponse:
    found = batch_get(pk, actor_of(request))
    done = "The batch job, its files and its results are removed."
    return call_service(request, batch_remove, done, "model_batches", found.model_name, batch=found)


def _model_context(request: HttpRequest, name: str) -> dict[str, Any]:
    actor = actor_of(request)
    return {
        **model_context(name, "playground"),
        "page": page_of(request, batch_jobs(actor, name)),
        "suffixes": ",".join(SUFFIXES),
        "may_read_sources": may_read_sources(actor),
        "sources": [*map(str, settings.SOURCE_FOLDERS), *settings.SOURCE_BUCKETS],
        "kept_days": settings.BATCH_DAYS,
    }


def _context(
    request: HttpRequest, found: BatchJob, mapping: Mapping[str, list[str]] | None = None, *, ask: bool = False
) -> dict[str, Any]:
    state = found.state
    context: dict[str, Any] = {
        "batch": found,
        "state": state,
        "label": JobState(state).label if state in JobState.values else state.capitalize(),
        "goes_on": found.under_way,
        "again": state in (JobState.FAILED, JobState.CANCELLED) and found.finished_at is None,
        "reasons": refusal_reasons(found),
        "files": found.files.all(),
        "received": sum(file.received for file in found.files.all()),
        "size": sum(file.size for file in found.files.all()),
        "most_errors": request.POST.get("most_errors") or found.plan.get("most_errors", MOST_ERRORS),
        "kept_days": settings.BATCH_DAYS,
    }
    if state != "ready" or not actor_of(request).may(Right.INFER):
        return context
    version, server = request.POST.get("version", ""), request.POST.get("server", "")
    context |= {"servers": offered_servers(servers()), "server": server or LOCAL}
    try:
        shown = batch_preview(
            batch=found, actor=actor_of(request), mapping=mapping, version=version, server=server, ask=ask
        )
    except DashboardError as error:
        return {**context, "refused": sentence(error.message)}
    return {**context, **_preview_context(shown)}


def _preview_context(shown: Preview) -> dict[str, Any]:
    columns = shown.columns[:_SHOWN_COLUMNS]
    answers: Sequence[Answer | None] = shown.answers or [None] * len(shown.rows)
    return {
        "preview": shown,
        "columns": columns,
        "hidden_columns": len(shown.columns) - len(columns),
        "choices": [_choice(row, shown.columns) for row in shown.inputs],
        "rows": [_shown(row, answer, columns) for row, answer in zip(shown.rows, answers, strict=True)],
    }


def _shown(row: Row, answer: Answer | None, columns: list[str]) -> tuple[list[str], list[str], str]:
    """Return the values of a row, those of its answer, and the reason why it has none, as short texts."""
    values = [_short(row.values.get(name)) for name in columns]
    if answer is None:
        return values, [], row.fault
    return values, [_short(value) for value in answer.values], answer.error


def _choice(row: Any, columns: list[str]) -> dict[str, Any]:
    chosen = row["columns"]
    options = [("", "nothing")]
    if len(chosen) > 1:
        options.append((_PROPOSED, f"{len(chosen)} columns, {chosen[0]} to {chosen[-1]}"))
    options += [(f"={column}", column) for column in columns[:1000]]
    return {
        "name": row["name"],
        "words": f"{row['datatype']} {row['shape']}" if row["shape"] else row["datatype"],
        "options": options,
        "chosen": _PROPOSED if len(chosen) > 1 else f"={chosen[0]}" if chosen else "",
    }


def _mapping(request: HttpRequest) -> dict[str, list[str]] | None:
    """Return the columns that the form chose for inputs, without those that keep the proposal."""
    prefix, found = "input.", dict[str, list[str]]()
    for key, value in request.POST.items():
        if key.startswith(prefix) and value != _PROPOSED:
            found[key.removeprefix(prefix)] = [str(value)[1:]] if value else []
    return found or None


def _short(value: object) -> str:
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= 60 else f"{text[:59]}…"
