"""The parts that templates are built from: icons, states, sparklines, addresses."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from dashboard.templatetags.units import rate
from repository.config.backends import FORMATS, formats_text
from repository.files import foreign_formats

register = template.Library()

T = TypeVar("T")

# How each state looks: its CSS class (one of four, or none) and its icon.
_STATES: dict[str, tuple[str, str]] = {
    "ready": ("ready", "ready"),
    "succeeded": ("ready", "ready"),
    "published": ("ready", "ready"),
    "inspected": ("ready", "ready"),
    "loading": ("loading", "loading"),
    "starting": ("loading", "loading"),
    "unloading": ("loading", "loading"),
    "publishing": ("loading", "loading"),
    "asleep": ("", "pause"),
    "running": ("loading", "loading"),
    "receiving": ("loading", "loading"),
    "received": ("loading", "loading"),
    "inspecting": ("loading", "loading"),
    "converting": ("loading", "loading"),
    "degraded": ("degraded", "degraded"),
    "drift": ("degraded", "degraded"),
    "paused": ("", "pause"),
    "holding": ("ready", "ready"),
    "done": ("ready", "ready"),
    "changing": ("loading", "loading"),
    "returned": ("", "undo"),
    "aborted": ("", "undo"),
    "rolled_back": ("failed", "undo"),
    "started": ("", "play"),
    "restarted": ("", "restart"),
    "expired": ("", "stopped"),
    "failed": ("failed", "failed"),
    "down": ("failed", "failed"),
    "crashed": ("failed", "failed"),
}
THEMES = ("light", "dark")
_DIFF_CLASSES = {"+": "add", "-": "del", "@": "at"}


@register.simple_tag
def icon(name: str) -> SafeString:
    """Return one symbol of the sprite. Screen readers skip it because the words are next to it."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static("img/icons.svg"), name
    )


@register.simple_tag
def state(word: str, label: str = "") -> SafeString:
    """Return a state as shape, colour and word."""
    kind, symbol = _STATES.get(word.lower(), ("", "stopped"))
    return format_html(
        '<span class="state {}" data-state="{}">{}{}</span>',
        kind,
        word.lower(),
        icon(symbol),
        label or word.replace("_", " ").capitalize(),
    )


@register.simple_tag
def state_icon(word: str) -> SafeString:
    return icon(_STATES.get(word.lower(), ("", "info"))[1])


@register.simple_tag(takes_context=True)
def theme(context: template.Context) -> SafeString:
    """Return the attribute that sets the theme; "" if the person has chosen none."""
    chosen = context["request"].COOKIES.get("slipway_theme") if "request" in context else None
    return format_html(' data-theme="{}"', chosen) if chosen in THEMES else SafeString("")


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: object) -> str:
    """Return the request's query string with these changes; "" or None removes a name."""
    parameters = context["request"].GET.copy()
    for name, value in changes.items():
        if value in ("", None):
            parameters.pop(name, None)
        else:
            parameters[name] = value
    return f"?{parameters.urlencode()}"


@register.simple_tag(takes_context=True)
def page_query(context: template.Context, number: int, by: str = "") -> str:
    """Return the request's query string with another page number. by: the parameter of the list, by default `page`."""
    return query(context, **{by or "page": number, "part": ""})


@register.inclusion_tag("parts/sort_head.html", takes_context=True)
def sort_head(context: template.Context, name: str, label: str, number: bool = False) -> dict[str, object]:
    """Show a table head that sorts by `name`; a second click reverses the order."""
    current = context.get("sort", "")
    down = current == f"-{name}"
    up = current == name
    following = f"-{name}" if up or (number and not down) else name
    return {
        "address": query(context, sort=following, page=""),
        "label": label,
        "number": number,
        "order": "descending" if down else "ascending" if up else "",
    }


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str = "") -> SafeString:
    """Return a line of `values` (requests per second, the oldest first), with gaps where nothing was measured (None).

    Each line is scaled to its own peak, which is shown next to it, so lines in one list may have different scales.
    """
    known = [value for value in values if value is not None]
    if len(known) < 2 or not max(known):
        return format_html(
            '<svg class="sparkline" viewBox="0 0 100 28" preserveAspectRatio="none" role="img" aria-label="{}">'
            '<line x1="0" x2="100" y1="27" y2="27"/></svg>',
            f"{label}: no traffic" if label else "No traffic",
        )
    top, step = max(known), 100 / max(len(values) - 1, 1)
    points = [(i * step, 27 - 25 * value / top) for i, value in enumerate(values) if value is not None]
    line = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    area = f"{line} L{points[-1][0]:.1f} 28 L{points[0][0]:.1f} 28 Z"
    return mark_safe(  # it holds nothing but computed numbers
        '<span class="spark"><svg class="sparkline" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area" d="{area}"/><path d="{line}"/></svg><span class="hint num">peak {rate(top)}</span></span>'
    )


@register.filter
def diff_lines(diff: str) -> list[tuple[str, str]]:
    """Return the lines of a unified diff, each with its CSS class, without the first two, which name the two texts."""
    return [(_DIFF_CLASSES.get(line[:1], ""), line) for line in diff.split("\n")[2:]]


@register.filter
def item(mapping: Mapping[str, T] | None, key: str) -> T | None:
    """Return the value of a key that a template variable holds."""
    return mapping.get(key) if mapping else None


@register.filter
def sentence(text: str) -> str:
    """Return an error's message as a sentence: with a capital letter at its start and a full stop at its end."""
    text = str(text).strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


@register.filter
def numbered(versions: Collection[int], archive_versions: Mapping[int, str]) -> str:
    """Return versions as a list, with the archive's own version in brackets if there is one: "2, 3 (1.0)"."""
    named = {number: f"{number} ({own})" for number in versions if (own := archive_versions.get(number))}
    return ", ".join(named.get(number, str(number)) for number in versions)


@register.filter
def code_spans(text: str) -> SafeString:
    """Return a text with its words in backticks as <code>."""
    parts = text.split("`")
    return mark_safe("".join(format_html("<code>{}</code>" if at % 2 else "{}", part) for at, part in enumerate(parts)))


@register.filter
def message_kind(level: str) -> str:
    """Return the state whose style a Django message of this level has."""
    return {"error": "failed", "warning": "degraded", "info": "info"}.get(level, "ready")


@register.filter
def list_text(values: Sequence[object] | None) -> str:
    """Return a list as the text of a form's input: "[ ]" for an empty list, "" for None."""
    if values is None:
        return ""
    return ", ".join(str(value) for value in values) or "[ ]"


@register.simple_tag
def code_formats() -> str:
    """Return the formats that need the right to upload code."""
    return formats_text(is_data=False)


@register.simple_tag
def data_formats() -> str:
    return formats_text(is_data=True)


@register.filter
def finding_kind(severity: str) -> str:
    """Return the state whose colour and icon are shown for a finding of this severity."""
    return {"error": "failed", "warning": "degraded"}.get(severity, "info")


@register.filter
def format_name(name: str) -> str:
    """Return the title of a format or backend."""
    if name == "ensemble":
        return "Ensemble"
    return next(
        (kind.title for of in (FORMATS, foreign_formats.BY_NAME) if (kind := of.get(name)) and kind.title), name
    )
