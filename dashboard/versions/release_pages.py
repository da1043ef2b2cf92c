"""The pages of releases: what is wanted, what serves, what was live when, and how to get back."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.access.authorisation import Right, requires
from dashboard.catalog.pages import model_context
from dashboard.configuration.callers import callers_of_release
from dashboard.models import Model
from dashboard.releases.going_back import going_back
from dashboard.releases.selectors import (
    ReleaseLife,
    lives_of,
    newest_release,
    release_get,
    releases,
    serving_release,
)
from dashboard.shared.choices import DesiredState
from dashboard.versions.checks import Step, steps_of
from dashboard.versions.timeline import RANGES, timeline
from dashboard.web.pages import page_of, respond
from repository.config import text as config_text
from repository.config.release_stamp import unstamped


@require_GET
@requires(Right.VIEW)
def model_releases(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "releases")
    model = head["model"]
    picture, shown = timeline(model, request.GET.get("range", ""))
    page = page_of(request, releases(model).defer("text", "returns_to__text"))
    context = {
        **head,
        **_standing(model),
        "timeline": picture,
        "range": shown,
        "ranges": RANGES,
        "page": page,
        "lives": lives_of(page),
    }
    return respond(request, "versions/releases", context)


def _standing(model: Model) -> dict[str, object]:
    """Return the newest release and the one that serves, which may be the same, with what the newest one's checks found."""
    newest, serving = newest_release(model), serving_release(model)
    lives = {life.release.pk: life for life in lives_of({row.pk: row for row in (newest, serving) if row}.values())}
    wanted = lives[newest.pk] if newest else None
    return {
        "newest": wanted,
        "serving": lives[serving.pk] if serving else None,
        "loaded": model.desired_state == DesiredState.LOADED,
        "steps": _shown_steps(wanted),
    }


def _shown_steps(life: ReleaseLife | None) -> list[Step]:
    """Return the steps while they matter: until the release serves."""
    return steps_of(life) if life is not None and life.state in ("checking", "failed") else []


@require_GET
@requires(Right.VIEW)
def release(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """One release: its facts, what its checks found, what it changed, and what going back to it would change."""
    head = model_context(name, "releases")
    model = head["model"]
    found = release_get(model, number)
    before = releases(model).filter(number__lt=number).first()
    newest = newest_release(model)
    life, text = lives_of([found])[0], unstamped(found.text)
    context = {
        **head,
        "life": life,
        "steps": steps_of(life),
        "before": before,
        "text": text,
        "changed": config_text.diff(unstamped(before.text) if before else "", text),
        "back": None if newest == found else going_back(model, found),
        "callers": [] if newest == found else callers_of_release(model, found),
    }
    return render(request, "versions/release.html", context)
