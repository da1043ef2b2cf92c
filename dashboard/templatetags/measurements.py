"""Figures of measurements as pages show them: never without their spread."""

from collections.abc import Callable, Mapping

from django import template

from dashboard.models import Measurement, Tuning
from dashboard.models.measurement import Figure, load_in_words, with_spread
from dashboard.models.tuning import Gain, TuningPlan
from dashboard.templatetags.units import NOTHING
from repository.core import quantities
from repository.core.quantities import three_digits

register = template.Library()


def _shown(figure: Figure | str | None, words: Callable[[float], str]) -> str:
    return with_spread(figure, words) if isinstance(figure, Mapping) else NOTHING


@register.filter
def ms_figure(figure: Figure | str | None) -> str:
    """A latency: `1.24 ms ± 80 µs`."""
    return _shown(figure, quantities.latency)


@register.filter
def rate_figure(figure: Figure | str | None) -> str:
    """Requests a second: `8.91 k ± 120`."""
    return _shown(figure, quantities.count)


@register.filter
def cores_figure(figure: Figure | str | None) -> str:
    """Processors in use: `1.2 ± 0.1`."""
    return _shown(figure, three_digits)


@register.filter
def joules_figure(figure: Figure | str | None) -> str:
    """The energy of a request: `0.12 J ± 0.01 J`."""
    return _shown(figure, lambda value: f"{quantities.number(value)} J")


@register.filter
def load_of(measurement: Measurement, load: float) -> str:
    """Return a load of a measurement in words."""
    return load_in_words(measurement.plan, load)


@register.filter
def gain_of(gain: Gain, plan: TuningPlan) -> str:
    """Return the gain of a tuning: `2.1 × the requests a second ± 0.05`, `p99 35 % lower ± 4 %`."""
    if plan["goal"] == "throughput":
        times = f"{three_digits(1 + gain['change'])} ×"
        return (
            times
            + (f" ± {three_digits(gain['spread'])}" if gain["spread"] is not None else "")
            + " the requests a second"
        )
    noun = "p99" if plan["goal"] == "latency" else "memory"
    way = "lower" if gain["change"] < 0 else "higher"
    spread = f" ± {three_digits(gain['spread'] * 100)} %" if gain["spread"] is not None else ""
    return f"{noun} {three_digits(abs(gain['change']) * 100)} % {way}{spread}"


@register.filter
def goal_figure_of(tuning: Tuning, figure: Figure) -> str:
    """Return the figure of a tuning's goal with its unit."""
    words: dict[str, Callable[[float], str]] = {
        "throughput": lambda value: f"{quantities.count(value)}/s",
        "latency": quantities.latency,
        "memory": lambda value: f"{three_digits(value / (1 << 20))} MiB",
    }
    return _shown(figure, words[tuning.plan["goal"]])
