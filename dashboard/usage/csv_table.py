"""Writes the use of a month as CSV: a row for each day, token and model, exact, so that the sums are those of the month."""

import csv
import io
from collections.abc import Iterable

from dashboard.models import UsageDay
from dashboard.usage.selectors import price_of
from repository.core.usage_log import COUNTERS

_FORMULA = "=+-@\t\r"  # a spreadsheet would run a cell that begins with one of these
_COUNTED = [name for name in COUNTERS if name != "compute_ns"]


def month_csv(rows: Iterable[UsageDay]) -> str:
    """Return the table, with a line of headings."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["day", "model", "token", "person", "groups", *_COUNTED, "compute_seconds", "price"])
    for row in rows:
        price = price_of(row.compute_ns)
        table.writerow(
            [
                row.day.isoformat(),
                *map(_plain, (row.model_name, row.token_name or row.token_hash, row.person, "; ".join(row.groups))),
                *[getattr(row, name) for name in _COUNTED],
                f"{row.compute_ns // 10**9}.{row.compute_ns % 10**9:09d}",
                "" if price is None else f"{price:.9f}",
            ]
        )
    return text.getvalue()


def _plain(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and text else text
