"""Numbers, sizes and times as the pages write them: a unit, and at most three significant digits.

What was not measured (None, or "" where a template finds nothing) is a dash.

static/js/core/format.js does the same in the browser; both are tested with the examples in tests/javascript/core/units.json.
"""

from datetime import datetime, timedelta
from typing import Literal

from django import template
from django.utils import timezone
from django.utils.html import format_html

register = template.Library()

NOTHING = "–"
_PREFIXES = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_AGES = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "d"))


def three_digits(value: float) -> str:
    """`value` with at most three significant digits, never in exponent form."""
    if value == 0:
        return "0"
    magnitude = abs(value)
    decimals = 0 if magnitude >= 100 else 1 if magnitude >= 10 else 2 if magnitude >= 1 else 3
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float) -> tuple[str, str]:
    prefix, factor = next((pair for pair in reversed(_PREFIXES) if abs(value) >= 0.9995 * pair[1]), _PREFIXES[0])
    return three_digits(value / factor), prefix


@register.filter
def count(value: float | Literal[""] | None) -> str:
    """1234567 as `1.23 M`."""
    if value is None or value == "":
        return NOTHING
    digits, prefix = _scaled(value)
    return f"{digits} {prefix}".rstrip()


@register.filter
def rate(value: float | Literal[""] | None) -> str:
    """Per second: 8912.3 as `8.91 k/s`."""
    if value is None or value == "":
        return NOTHING
    digits, prefix = _scaled(value)
    return f"{digits} {prefix}/s" if prefix else f"{digits}/s"


@register.filter
def latency(milliseconds: float | Literal[""] | None) -> str:
    """A duration in milliseconds as `124 µs`, `1.24 ms` or `12.4 s`."""
    if milliseconds is None or milliseconds == "":
        return NOTHING
    if milliseconds == 0:
        return "0 ms"
    if milliseconds < 0.9995:
        return f"{three_digits(milliseconds * 1e3)} µs"
    if milliseconds < 999.5:
        return f"{three_digits(milliseconds)} ms"
    return f"{three_digits(milliseconds / 1e3)} s"


@register.filter
def share(value: float | Literal[""] | None) -> str:
    """A share from 0 to 1 as a percentage."""
    if value is None or value == "":
        return NOTHING
    if 0 < value < 0.0001:
        return "< 0.01 %"
    if 0.9995 <= value < 1:
        return "> 99.9 %"
    return f"{three_digits(value * 100)} %"


@register.filter
def size(value: float | Literal[""] | None) -> str:
    """Bytes as `12.4 MiB`."""
    if value is None or value == "":
        return NOTHING
    power = 0
    while abs(value) >= 1023.5 and power < len(_SIZES) - 1:
        value, power = value / 1024, power + 1
    return f"{three_digits(value)} {_SIZES[power]}"


@register.filter
def duration(value: timedelta | float | None) -> str:
    """How long something took or has been going on: `250 ms`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if value is None or value == "":
        return NOTHING
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 1:
        return latency(max(seconds, 0) * 1000)
    if seconds < 10:
        return f"{three_digits(seconds)} s"
    seconds = round(seconds)
    for name, length, small, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {name} {rest} {small}" if rest else f"{seconds // length} {name}"
    return f"{seconds} s"


def relative(moment: datetime, now: datetime | None = None) -> str:
    """`just now`, `42 s ago`, `3 min ago`, `in 2 h`; the date itself after two months."""
    seconds = ((now or timezone.now()) - moment).total_seconds()
    if abs(seconds) < 5:
        return "just now"
    for limit, length, unit in _AGES:
        if abs(seconds) < limit:
            amount = f"{int(abs(seconds) // length)} {unit}"
            return f"{amount} ago" if seconds > 0 else f"in {amount}"
    return f"{moment:%-d %b %Y}"


@register.filter
def ago(moment: datetime | None) -> str:
    """A moment relative to now, the exact one on hover; the browser keeps it current."""
    if moment is None:
        return format_html('<span class="muted">{}</span>', "never")
    utc = moment.astimezone(timezone.get_default_timezone())
    return format_html(
        '<time datetime="{}" title="{}" data-ago>{}</time>',
        utc.isoformat(),
        f"{utc:%Y-%m-%d %H:%M:%S} UTC",
        relative(moment),
    )


@register.filter
def shape(dims: list[int]) -> str:
    """A tensor's shape as `[-1, 8, 8]`."""
    return "[" + ", ".join(str(dim) for dim in dims) + "]"
