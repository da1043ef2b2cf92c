"""The pages of releases: the last change and how to undo it, the rollout under way, the serving release, the timeline."""

from django.conf import settings
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right
from dashboard.catalog.pages import model_context
from dashboard.configuration.callers import callers_of_release
from dashboard.configuration.clients import for_clients_of_release
from dashboard.models import Model, Release
from dashboard.releases.going_back import going_back
from dashboard.releases.selectors import (
    ReleaseLife,
    lives_of,
    newest_release,
    release_get,
    releases,
    serving_release,
    texts,
)
from dashboard.rollouts.picture import picture_of, rollout_on_releases
from dashboard.rollouts.selectors import last_change, rollouts
from dashboard.shared.choices import DesiredState
from dashboard.versions.checks import Step, steps_of
from dashboard.versions.timeline import RANGES, timeline
from dashboard.web.addresses import get
from dashboard.web.pages import page_of, respond
from repository.config.lines import unified

SHOWN_ROLLOUTS = 5  # the most earlier rollouts that are shown; another page lists all
SHOWN_RELEASES = 20


@get("models/<str:name>/releases/", Right.VIEW)
def model_releases(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "releases")
    model = head["model"]
    on_disk = newest_release(model)
    newest = on_disk.begun if on_disk is not None else None
    page = SimpleLazyObject(lambda: page_of(request, _listed(model), SHOWN_RELEASES))
    recent = list(rollouts(model)[: SHOWN_ROLLOUTS + 1])
    rollout = rollout_on_releases(recent)
    context = {  # lazy, so that a part reads no more than it shows
        **head,
        "last": SimpleLazyObject(lambda: last_change(model, release=newest, back=head["way_back"])),
        "shown_rollout": rollout,
        "picture": SimpleLazyObject(lambda: picture_of(rollout) if rollout else None),
        "standing": SimpleLazyObject(lambda: _standing(model, newest)),
        "shown": SimpleLazyObject(lambda: timeline(model, request.GET.get("range", ""))),
        "ranges": RANGES,
        "rollouts": recent[1:] if rollout else recent[:SHOWN_ROLLOUTS],
        "page": page,
        "lives": SimpleLazyObject(lambda: lives_of(page)),
    }
    return respond(request, "versions/releases", context, parts=("now", "rows"))


def _listed(model: Model) -> QuerySet[Release]:
    """Return a model's releases without their texts, each with its further texts."""
    further = Release.objects.defer("text").order_by("-number")
    return releases(model).defer("text", "returns_to__text").prefetch_related(Prefetch("texts", further))


def _standing(model: Model, newest: Release | None) -> dict[str, object]:
    """Return the newest release and the serving one, which may be the same, with the newest one's checks."""
    serving = serving_release(model)
    lives = {life.release.pk: life for life in lives_of({row.pk: row for row in (newest, serving) if row}.values())}
    wanted = lives[newest.pk] if newest else None
    return {
        "newest": wanted,
        "serving": lives[serving.pk] if serving else None,
        "live": serving.without_shadow(serving.versions) if serving else [],
        "answers": serving.answers if serving and len(serving.versions) > 1 else None,
        "loaded": model.desired_state == DesiredState.LOADED,
        "steps": _shown_steps(wanted),
    }


def _shown_steps(life: ReleaseLife | None) -> list[Step]:
    """Return the steps of a release that is being checked or has failed; [] for others."""
    return steps_of(life) if life is not None and life.state in ("checking", "failed") else []


@get("models/<str:name>/releases/<int:number>/", Right.VIEW)
def release(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show one release: its facts, its checks, its changes, and a preview of going back to it."""
    head = model_context(name, "releases")
    model = head["model"]
    found = release_get(model, number)
    before = texts(model).filter(number__lt=number).first()
    on_disk = newest_release(model)
    is_wanted = on_disk is not None and on_disk.begun == found.begun
    life, text = lives_of([found])[0], found.document.text
    context = {
        **head,
        "life": life,
        "steps": steps_of(life),
        "before": before,
        "text": text,
        "changed": unified(before.document.text if before else "", text),
        "back": None if is_wanted else going_back(model, found),
        "clients": None if is_wanted else for_clients_of_release(model, found),
        "callers": [] if is_wanted else callers_of_release(model, found),
        "export_places": [one.partition("://")[2] for one in settings.EXPORT_REGISTRIES],
    }
    return respond(request, "versions/release", context, parts=("now",))
