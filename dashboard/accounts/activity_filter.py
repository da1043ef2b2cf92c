"""Reads the filter of the activity list from the query of a page or a REST request."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from django.utils.dateparse import parse_date, parse_datetime

from dashboard.access.happenings import Filter
from dashboard.shared.exceptions import Invalid


def read_filter(params: Mapping[str, str]) -> Filter:
    """Return the filter from the parameters `what`, `who`, `model`, `q`, `from` and `to`.

    A date in `to` includes its whole day. Dates and moments without a zone are in UTC.
    Raises Invalid if `from` or `to` is no date.
    """
    what, who, model, text = (params.get(key, "").strip() for key in ("what", "who", "model", "q"))
    return Filter(what, who, model, text, since=_moment(params, "from", 0), until=_moment(params, "to", 1))


def _moment(params: Mapping[str, str], name: str, days: int) -> datetime | None:
    """Return a moment of the query, or None if the query does not set it. days: the days to add to a date without a time."""
    text = params.get(name, "").strip()
    if not text:
        return None
    try:
        day = parse_date(text)
        if day is not None:
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=days)
        moment = parse_datetime(text.replace(" ", "+"))  # an unescaped + of a zone arrives as a space
    except (ValueError, OverflowError):
        moment = None
    if moment is None:
        raise Invalid(f"expected '{name}' as a date or a moment, such as 2026-11-30 or 2026-11-30T17:05:00Z")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
