"""Filters of the page of usage: exact counts, times and prices, because people pay by them."""

from django import template

register = template.Library()


@register.filter
def plain(value: float) -> str:
    """Return an exact number with commas between thousands: "1,234,567", "0.5"."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.10g}"


@register.filter
def seconds(value: float) -> str:
    """Return a compute time: "12.3 s" below an hour, "4.56 h" from an hour on."""
    return f"{value / 3600:,.2f} h" if value >= 3600 else f"{value:,.3g} s" if value < 100 else f"{value:,.0f} s"


@register.filter
def money(value: float | None) -> str:
    """Return a price with two decimals."""
    if not value:
        return "0.00"
    return f"{value:,.2f}" if value >= 0.01 else "< 0.01"
