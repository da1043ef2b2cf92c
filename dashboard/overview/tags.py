"""Template tags that ask the database: health, links of the rail, ranges of charts, what an audit entry changed."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from django import template
from django.contrib.auth.models import User
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone

from dashboard.access.authorisation import Actor, Right, token_rights
from dashboard.access.happenings import Happening
from dashboard.accounts.accounts import granted
from dashboard.catalog.selectors import ModelSummary, models_standing
from dashboard.models import ApiToken, Job, ModelState
from dashboard.overview.search_pages import PAGES
from dashboard.servers.selectors import all_down, servers
from dashboard.shared import heartbeat
from dashboard.shared.choices import EventKind, ServerStatus
from dashboard.templatetags.units import NOTHING, duration
from repository.config.lines import unified

register = template.Library()

RANGES = ("15m", "1h", "6h", "24h", "7d", "30d")
_ACTION_ICONS = (
    ("version.publish", "upload"),
    ("rollout.abort", "undo"),
    ("rollout.roll_back", "undo"),
    ("release.promote", "live"),
    ("release.go_back", "undo"),
    ("release.", "live"),
    ("rollout.", "live"),
    ("version.", "archive"),
    ("config.", "pen"),
    ("model.load", "play"),
    ("model.", "models"),
    ("server.", "servers"),
    ("release.", "live"),
    ("alias", "live"),
    ("token.", "key"),
    ("account.", "user"),
    ("upload.", "upload"),
    ("import.", "upload"),
    ("job.", "jobs"),
    ("drift.", "degraded"),
    ("ready", "ready"),
    ("started", "play"),
    ("restarted", "restart"),
    ("stopped", "stopped"),
    ("model_loaded", "play"),
    ("model_unloaded", "stopped"),
    ("repaired", "degraded"),
)
_EVENT_STATES = {
    EventKind.READY: "ready",
    EventKind.UNREACHABLE: "down",
    EventKind.MODEL_LOADED: "ready",
    EventKind.MODEL_UNLOADED: "unloaded",
    EventKind.MODEL_FAILED: "failed",
    EventKind.BREACHED: "failed",
    EventKind.REPAIRED: "degraded",
}


@register.simple_tag
def health() -> dict[str, object]:
    """Return how everything is, for the title and the favicon of every page.

    failing: how many models, servers and processes fail. silent: a sentence for each process that does not answer.
    """
    # Of models on a server that is down only that is known: it is one failure, however many they are.
    states = [] if all_down() else [model.state for model in models_standing()]
    down = sum(
        getattr(server, "state", None) is not None and server.state.state == ServerStatus.DOWN for server in servers()
    )
    silent = heartbeat.silent()
    failing = states.count("failed") + down + len(silent)
    suffix = (
        "-failed" if failing else "-degraded" if "degraded" in states else "-loading" if "loading" in states else ""
    )
    return {"failing": failing, "silent": silent, "favicon": static(f"img/favicon{suffix}.svg")}


@register.inclusion_tag("overview/rail_links.html", takes_context=True)
def rail_links(context: template.Context) -> dict[str, object]:
    path = context["request"].path
    links = [
        {"name": name, "key": key, "label": name.capitalize(), "address": reverse(name), "here": _is_under(path, name)}
        for name, key in PAGES.items()
    ]
    return {"links": links}


@register.simple_tag
def page_keys() -> list[tuple[str, str]]:
    """Return the key that opens each page after `g`, and the page's name."""
    return [(key, name.capitalize()) for name, key in PAGES.items()]


def _is_under(path: str, name: str) -> bool:
    """Whether a path is that of the page `name` or of one that belongs to it."""
    address = reverse(name)
    under = "/uploads/" if name == "models" else address
    return path == address or (name != "overview" and path.startswith((address, under)))


@register.inclusion_tag("metrics/range_picker.html", takes_context=True)
def range_picker(context: template.Context) -> dict[str, object]:
    return {"ranges": RANGES, "now": _range(context)}


def _range(context: template.Context) -> str:
    chosen = context["request"].GET.get("range", "")
    return chosen if chosen in RANGES else RANGES[0]


@register.inclusion_tag("metrics/charts_config.html", takes_context=True)
def charts_config(
    context: template.Context, model: str = "", server: str = "", range: str = "", version: str = ""
) -> dict[str, object]:
    """Give static/js/charts/board.js what it begins with."""
    request = context["request"]
    zoom = [request.GET.get("from", ""), request.GET.get("to", "")]
    config = {
        "history": reverse("metrics"),
        "live": "/ws/live/",
        "model": model,
        "server": server,
        "range": range or _range(context),
        "zoom": zoom if all(part.isdigit() for part in zoom) else None,
        "version": version,
    }
    return {"config": config}


@register.filter
def serving(summary: ModelSummary) -> list[int]:
    """Return the versions that answer now on any server, the oldest first; those that should are `wanted_versions`."""
    ready = {row.version for row in summary.server_states if row.word == "ready"}
    return [number for number in summary.live_versions if number in ready]


@register.filter
def ready_count(states: Iterable[ModelState]) -> int:
    return sum(row.word == "ready" for row in states)


@register.filter
def event_state(kind: str) -> str:
    return _EVENT_STATES.get(EventKind(kind), kind)


@register.filter
def action_icon(action: str) -> str:
    return next((icon for prefix, icon in _ACTION_ICONS if action.startswith(prefix)), "info")


@register.simple_tag
def took(job: Job) -> str:
    """Return how long a job took, or has been running for."""
    if job.started_at is None:
        return NOTHING
    return duration((job.finished_at or timezone.now()) - job.started_at)


@register.filter
def rights_of(person: User) -> list[str]:
    """Return what a person may do, in words."""
    actor = Actor(user=person)
    return [right.value for right in Right if actor.may(right)]


@register.filter
def opens(token: ApiToken) -> list[str]:
    """Return those of a token's rights that its person has at present."""
    return list(token_rights(Actor(user=token.user, token=token)))


@register.filter
def permission_names(person: User) -> set[str]:
    """Return the permissions of accounts.GRANTABLE that a person was given."""
    return set(granted(person))


class Difference(NamedTuple):
    """What became of one field. diff: unified, where both are texts of lines."""

    name: str
    before: str
    after: str
    diff: str


@register.simple_tag
def differences(row: Happening) -> list[Difference]:
    """Return every field that a happening changed."""
    names = dict.fromkeys([*row.before, *row.after])
    return [_difference(name, row) for name in names if row.before.get(name) != row.after.get(name)]


def _difference(name: str, row: Happening) -> Difference:
    before, after = row.before.get(name), row.after.get(name)
    texts = isinstance(before, str) and isinstance(after, str) and "\n" in before + after
    diff = unified(str(before), str(after)) if texts else ""
    return Difference(name, _shown(before), _shown(after), diff)


def _shown(value: object) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
