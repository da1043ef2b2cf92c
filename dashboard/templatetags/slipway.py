"""The parts that templates are built from: icons, states, sparklines, addresses."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import template
from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

register = template.Library()

# What each word of the vocabulary looks like: class (one of the four states, or none) and icon.
_STATES: dict[str, tuple[str, str]] = {
    "ready": ("ready", "ready"),
    "live": ("loading", "loading"),
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
    "degraded": ("degraded", "degraded"),
    "drift": ("degraded", "degraded"),
    "started": ("", "play"),
    "restarted": ("", "restart"),
    "expired": ("", "stopped"),
    "failed": ("failed", "failed"),
    "down": ("failed", "failed"),
    "crashed": ("failed", "failed"),
    "unavailable": ("failed", "failed"),
}
THEMES = ("light", "dark")


@register.simple_tag
def icon(name: str) -> SafeString:
    """One symbol of the sprite; decoration only, the words stand beside it."""
    return format_html(
        '<svg class="icon" aria-hidden="true"><use href="{}#{}"></use></svg>', static("img/icons.svg"), name
    )


@register.simple_tag
def state(word: str, label: str = "") -> SafeString:
    """A state as shape, colour and word."""
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
    """The attribute that sets the theme, when the person has set one."""
    chosen = context["request"].COOKIES.get("slipway_theme") if "request" in context else None
    return format_html(' data-theme="{}"', chosen) if chosen in THEMES else SafeString("")


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: Any) -> str:
    """The present query string with these changes; an empty value removes its name."""
    parameters = context["request"].GET.copy()
    for name, value in changes.items():
        if value in ("", None):
            parameters.pop(name, None)
        else:
            parameters[name] = value
    return f"?{parameters.urlencode()}"


@register.inclusion_tag("parts/sort_head.html", takes_context=True)
def sort_head(context: template.Context, name: str, label: str, number: bool = False) -> dict[str, Any]:
    """A table head that sorts by `name`; a second click turns the order."""
    current = context.get("sort", "")
    down = current == f"-{name}"
    up = current == name
    following = name if down else f"-{name}" if up else (f"-{name}" if number else name)
    return {
        "address": query(context, sort=following, page=""),
        "label": label,
        "number": number,
        "order": "descending" if down else "ascending" if up else "",
    }


@register.simple_tag
def sparkline(values: Sequence[float | None], label: str = "") -> SafeString:
    """A line over `values`, oldest first; gaps where nothing was measured."""
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
    return mark_safe(  # every part of it is a number of ours
        '<svg class="sparkline" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="area" d="{area}"/><path d="{line}"/></svg>'
    )


@register.filter
def item(mapping: Mapping[str, Any], key: str) -> Any:
    return mapping.get(key) if mapping else None


@register.filter
def sentence(text: str) -> str:
    """An error's message as a sentence of a page: a capital first, a full stop last."""
    text = str(text).strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


@register.filter
def message_kind(level: str) -> str:
    """The state that a Django message's level looks like."""
    return {"error": "failed", "warning": "degraded", "info": "info"}.get(level, "ready")


@register.filter
def join_or_blank(values: Sequence[Any] | None) -> str:
    return ", ".join(str(value) for value in values) if values else ""


_FORMATS = {
    "onnx": "ONNX",
    "torchscript": "TorchScript",
    "torch_export": "torch.export",
    "tensorrt": "TensorRT plan",
    "python": "Python",
    "ensemble": "Ensemble",
}


@register.filter
def format_name(name: str) -> str:
    return _FORMATS.get(name, name)
