"""Template tags that ask the database: health, links of the rail, ranges of charts, what an audit entry changed."""

import json
from collections.abc import Iterable

from django import template
from django.contrib.auth.models import User
from django.templatetags.static import static
from django.urls import reverse
from django.utils import timezone

from dashboard.access.authorisation import Actor, Right, token_rights
from dashboard.catalog.selectors import ModelSummary, models_standing
from dashboard.models import ApiToken, AuditEntry, Job, ModelState
from dashboard.overview.search import PAGES
from dashboard.servers.selectors import servers
from dashboard.shared import heartbeat
from dashboard.shared.choices import EventKind, ServerStatus
from dashboard.templatetags.units import NOTHING, duration

register = template.Library()

RANGES = ("15m", "1h", "6h", "24h", "7d", "30d")
_ACTION_ICONS = (
    ("version.publish", "upload"),
    ("version.make_live", "live"),
    ("version.roll_back", "undo"),
    ("version.", "archive"),
    ("config.", "pen"),
    ("model.load", "play"),
    ("model.", "models"),
    ("server.", "servers"),
    ("token.", "key"),
    ("account.", "user"),
    ("upload.", "upload"),
    ("job.", "jobs"),
    ("drift.", "degraded"),
)
_EVENT_STATES = {
    EventKind.READY: "ready",
    EventKind.UNREACHABLE: "down",
    EventKind.MODEL_LOADED: "ready",
    EventKind.MODEL_UNLOADED: "unloaded",
    EventKind.MODEL_FAILED: "failed",
    EventKind.REPAIRED: "degraded",
}


@register.simple_tag
def health() -> dict[str, object]:
    """Return how everything is, for the title and the favicon of every page.

    failing: how many models, servers and processes fail. silent: a sentence for each process that does not answer.
    """
    states = [model.state for model in models_standing()]
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
def charts_config(context: template.Context, model: str = "", server: str = "", range: str = "") -> dict[str, object]:
    """Give static/js/charts/board.js what it begins with."""
    request = context["request"]
    zoom = [request.GET.get("from", ""), request.GET.get("to", "")]
    activity = reverse("model_activity", args=[model]) if model else reverse("activity")
    config = {
        "history": reverse("metrics"),
        "live": "/ws/live/",
        "model": model,
        "server": server,
        "range": range or _range(context),
        "zoom": zoom if all(part.isdigit() for part in zoom) else None,
        "activity": activity,
    }
    return {"config": config}


@register.filter
def serving(summary: ModelSummary) -> list[int]:
    """Return the versions that answer now on any server, the oldest first; those that should are `live_versions`."""
    return sorted({row.version for row in summary.server_states if row.word == "ready"})


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
    return {permission.codename for permission in person.user_permissions.all()}


@register.simple_tag
def change_table(entry: AuditEntry) -> list[tuple[str, str, str]]:
    """Return (field, before, after) for every field that an entry changed."""
    names = dict.fromkeys([*entry.before, *entry.after])
    rows = [(name, _shown(entry.before.get(name)), _shown(entry.after.get(name))) for name in names]
    return [row for row in rows if row[1] != row[2]]


def _shown(value: object) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
