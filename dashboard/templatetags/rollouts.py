"""What pages of rollouts write of numbers and shares."""

from collections.abc import Mapping
from typing import Literal

from django import template
from django.utils.html import format_html

from dashboard.shared.intervals import Estimate
from dashboard.templatetags.units import NOTHING, latency, share
from repository.core import quantities
from repository.core.quantities import three_digits

register = template.Library()

# Why a mirror was not sent, or given up (serving/traffic/mirror.py).
_DROPPED = {
    "in_flight": "enough were under way",
    "memory": "no memory was free",
    "queue": "requests were waiting",
    "unfit": "cannot be mirrored",
    "too_large": "too large",
    "loop": "the server was busy",
    "refused": "the candidate refused them",
}


@register.filter
def of_unit(value: float | Literal[""] | None, unit: str) -> str:
    """Return a guardrail's value in its unit (rollouts.selectors.GuardrailLine)."""
    if unit == "share":
        return share(value)
    return latency(value) if unit == "ms" else small(value)


@register.filter
def apart(estimate: Estimate | Literal[""] | None, unit: str) -> str:
    """Return by how much two arms are apart, with the bounds of that, in a guardrail's unit."""
    if not estimate:
        return NOTHING
    value, low, high = (_signed(each, unit) for each in (estimate.value, estimate.low, estimate.high))
    return format_html(
        '{}<small class="hint">{} to {}{}</small>', value, low, high, "" if estimate.clear else ": may be chance"
    )


def _signed(value: float, unit: str) -> str:
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return sign + (f"{three_digits(abs(value) * 100)} points" if unit == "share" else latency(abs(value)))


@register.filter
def small(value: float | Literal[""] | None) -> str:
    """Return a number of any size, with three digits: 0.00012 as `1.2e-4`."""
    return NOTHING if value is None or value == "" else quantities.number(value)


@register.filter
def number(value: float) -> str:
    """Return a number as somebody typed it: 2.5, and 5 without a point."""
    return f"{value:g}"


@register.filter
def percent(value: float) -> str:
    return f"{value:g} %"


@register.filter
def about(text: str, name: str) -> str:
    """Return an entry's sentence without the name of the model that it begins with: the page is about that model."""
    return text.removeprefix(f"{name}: ")


@register.filter
def probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {three_digits(value)}"


@register.filter
def dropped(reason: str) -> str:
    return _DROPPED.get(reason, reason.replace("_", " "))


@register.filter
def shares(traffic: Mapping[str, float]) -> str:
    """Return a release's shares: "95 % version 1, 5 % version 2"."""
    named = ((f"version {who}" if who.isdecimal() else who, part) for who, part in traffic.items())
    return ", ".join(f"{part:g} % {who}" for who, part in named)
