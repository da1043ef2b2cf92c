"""Numbers, sizes and times as the pages show them: with a unit and at most three significant digits.

A value that was not measured (None, or "" for a template's missing variable) is shown as a dash.

The inference server shares the formats in repository/core/quantities.py. static/js/core/format.js does the same in the browser;
both are tested with the examples in tests/javascript/core/units.json.
"""

from datetime import datetime, timedelta
from typing import Literal

from django import template
from django.utils import timezone
from django.utils.html import format_html

from repository.core import quantities
from repository.core.quantities import three_digits

register = template.Library()

NOTHING = "–"
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_AGES = ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h"), (86400 * 60, 86400, "d"))


@register.filter
def count(value: float | Literal[""] | None) -> str:
    """1234567 as `1.23 M`."""
    if value is None or value == "":
        return NOTHING
    return quantities.count(value)


@register.filter
def rate(value: float | Literal[""] | None) -> str:
    """A number per second: 8912.3 as `8.91 k/s`."""
    if value is None or value == "":
        return NOTHING
    digits, prefix = quantities.scaled(value)
    return f"{digits} {prefix}/s" if prefix else f"{digits}/s"


@register.filter
def latency(milliseconds: float | Literal[""] | None) -> str:
    """A duration in milliseconds as `124 µs`, `1.24 ms` or `12.4 s`."""
    return NOTHING if milliseconds is None or milliseconds == "" else quantities.latency(milliseconds)


@register.filter
def figure(value: float | Literal[""] | None) -> str:
    """A number without a unit, with three digits: 0.0000012345 as `1.23e-06`."""
    return NOTHING if value is None or value == "" else f"{value:.3g}"


@register.filter
def share(value: float | Literal[""] | None) -> str:
    """A share from 0 to 1 as a percentage."""
    return NOTHING if value is None or value == "" else quantities.share(value)


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
    """A duration, or a number of seconds, as `250 ms`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    if value is None or value == "":
        return NOTHING
    return quantities.duration(value.total_seconds() if isinstance(value, timedelta) else float(value))


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
    """A moment relative to now, with the exact time on hover; the browser keeps it current."""
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
