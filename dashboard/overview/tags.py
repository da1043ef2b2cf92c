"""Template tags that query the database: health, links of the rail, ranges of charts, differences of an audit entry."""

import json
from typing import NamedTuple

from django import template
from django.contrib.auth.models import User
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone

from dashboard.access.authorisation import Actor, Right, token_rights
from dashboard.access.control import backup_time, restored_from
from dashboard.access.happenings import Happening
from dashboard.accounts.accounts import granted
from dashboard.accounts.tokens import groups_of
from dashboard.alerts.selectors import firing_count
from dashboard.catalog.selectors import ModelSummary, models_standing
from dashboard.models import ApiToken, Job
from dashboard.overview.search_pages import PAGES
from dashboard.servers.selectors import all_down, servers
from dashboard.shared import heartbeat
from dashboard.shared.choices import EventKind, ServerStatus
from dashboard.templatetags.units import NOTHING, duration
from repository.config.lines import unified

register = template.Library()

UNDER = {
    "models": ("/uploads/",),
    "servers": ("/doctor/", "/environments/"),
}  # page of the rail -> where other pages of it lie
_AROUND_S = 300  # what a link to one moment (`at`) shows before and after it
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
    ("environment.", "servers"),
    ("alias", "live"),
    ("token.", "key"),
    ("account.", "user"),
    ("upload.", "upload"),
    ("import.", "upload"),
    ("job.", "jobs"),
    ("measurement.", "play"),
    ("budget.", "degraded"),
    ("replay_gate.", "degraded"),
    ("replay.", "play"),
    ("capture.", "file"),
    ("objective.", "degraded"),
    ("alert.", "alerts"),
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
    """Return the health of everything, for the title and the favicon of every page.

    failing: the number of models, servers and processes that fail, or of alerts if more of them fire. firing: the number of
    alerts that nobody has acknowledged or muted. silent: a sentence for each process that does not answer. restored: the time
    of the backup from which this installation was restored, None if it is in control.
    """
    # The models on a server that is down do not count: the server is one failure.
    states = [] if all_down() else [model.state for model in models_standing()]
    down = sum(
        getattr(server, "state", None) is not None and server.state.state == ServerStatus.DOWN for server in servers()
    )
    silent = heartbeat.silent()
    firing = firing_count()
    failing = max(states.count("failed") + down + len(silent), firing)
    suffix = (
        "-failed" if failing else "-degraded" if "degraded" in states else "-loading" if "loading" in states else ""
    )
    return {
        "failing": failing,
        "firing": firing,
        "silent": silent,
        "restored": backup_time(restored_from()),
        "favicon": static(f"img/favicon{suffix}.svg"),
    }


@register.inclusion_tag("overview/rail_links.html", takes_context=True)
def rail_links(context: template.Context) -> dict[str, object]:
    path = context["request"].path
    links = [
        {"name": name, "key": key, "label": name.capitalize(), "address": reverse(name), "here": _is_under(path, name)}
        for name, key in PAGES.items()
    ]
    return {"links": links, "firing": (context.get("shell_health") or {}).get("firing", 0)}


@register.simple_tag
def page_keys() -> list[tuple[str, str]]:
    """Return the key that opens each page after `g`, and the page's name."""
    return [(key, name.capitalize()) for name, key in PAGES.items()]


def _is_under(path: str, name: str) -> bool:
    """Return whether a path is the page `name` or a page below it."""
    address = reverse(name)
    return path == address or (name != "overview" and path.startswith((address, *UNDER.get(name, ()))))


@register.inclusion_tag("metrics/range_picker.html", takes_context=True)
def range_picker(context: template.Context) -> dict[str, object]:
    return {"ranges": RANGES, "now": _range(context)}


def _range(context: template.Context) -> str:
    chosen = context["request"].GET.get("range", "")
    return chosen if chosen in RANGES else RANGES[0]


@register.inclusion_tag("metrics/charts_config.html", takes_context=True)
def charts_config(
    context: template.Context,
    model: str = "",
    server: str = "",
    range: str = "",
    version: str = "",
    environment: str = "",
) -> dict[str, object]:
    """Return the configuration of static/js/charts/board.js, with the choices in the address of the page."""
    request = context["request"]
    zoom = [request.GET.get("from", ""), request.GET.get("to", "")]
    if (at := request.GET.get("at", "")).isascii() and at.isdigit():
        zoom = [str(max(0, int(at) - _AROUND_S)), str(int(at) + _AROUND_S)]
    config = {
        "history": reverse("metrics"),
        "live": "/ws/live/",
        "model": model,
        "server": server,
        "environment": environment,
        "range": range or _range(context),
        "zoom": zoom if all(part.isdigit() for part in zoom) else None,
        "compare": request.GET.get("compare", ""),
        "heat": request.GET.get("heat", ""),
        "version": version,
    }
    return {"config": config}


@register.filter
def serving(summary: ModelSummary) -> list[int]:
    """Return the live versions that are ready on any server, the oldest first."""
    return [number for number in summary.live_versions if number in summary.ready_versions]


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
    """Return a person's rights in words."""
    actor = Actor(user=person)
    return [right.value for right in Right if actor.may(right)]


@register.filter
def opens(token: ApiToken) -> list[str]:
    """Return the rights that a token gives now: those of its rights that its owner still has."""
    return list(token_rights(Actor(user=token.user, token=token)))


@register.filter
def groups_of_person(person: User) -> str:
    """Return the names of a person's groups with commas between, for an input."""
    return ", ".join(groups_of(person))


@register.filter
def permission_names(person: User) -> set[str]:
    """Return the permissions of accounts.GRANTABLE that a person was given."""
    return set(granted(person))


class Difference(NamedTuple):
    """The change of one field. diff: a unified diff if both values are texts of several lines, else ""."""

    name: str
    before: str
    after: str
    diff: str


@register.simple_tag
def differences(row: Happening) -> list[Difference]:
    """Return the changes of a row of the activity, field by field."""
    names = dict.fromkeys([*row.before, *row.after])
    return [_difference(name, row) for name in names if row.before.get(name) != row.after.get(name)]


def _difference(name: str, row: Happening) -> Difference:
    before, after = row.before.get(name), row.after.get(name)
    texts = isinstance(before, str) and isinstance(after, str) and "\n" in before + after
    diff = unified(str(before), str(after)) if texts else ""
    return Difference(name, _format_value(before), _format_value(after), diff)


def _format_value(value: object) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
