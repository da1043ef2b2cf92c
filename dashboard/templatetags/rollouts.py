"""Numbers and shares as the pages of rollouts show them."""

from collections.abc import Mapping
from typing import Literal

from django import template
from django.utils.html import format_html

from dashboard.shared.intervals import Estimate
from dashboard.templatetags.units import NOTHING, latency, share
from repository.core import quantities
from repository.core.quantities import three_digits

register = template.Library()

# The reasons for which a mirrored request was not sent or was given up (serving/traffic/mirror.py).
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
    """Return the difference of two arms with its confidence bounds, in a guardrail's unit."""
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
    """Return a number as a person would type it: 2.5, and 5 without a point."""
    return f"{value:g}"


@register.filter
def percent(value: float) -> str:
    return f"{value:g} %"


@register.filter
def about(text: str, name: str) -> str:
    """Return an entry's summary without the model's name at its start, for a page about that model."""
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
    return ", ".join(f"{part:g} % {f'version {arm}' if arm.isdecimal() else arm}" for arm, part in traffic.items())
