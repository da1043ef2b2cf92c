"""The report of the checks, for people and as JSON. It can be made before the settings are known to be right."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dashboard.doctor.check import Check, Finding, examine
from dashboard.shared.exceptions import Invalid

TEXT, JSON, LINES = "text", "json", "lines"


def report(findings: Iterable[Finding], form: str = TEXT) -> bool:
    """Print what became of the checks, and return whether all is well.

    form: text or lines of JSON, each when its check is made; or one JSON object at the end.
    """
    rows = []
    for one in findings:
        rows.append(one)
        if form == LINES:
            print(json.dumps(asdict(one)), flush=True)
        elif form == TEXT:
            print("\n".join(_lines(one)), flush=True)
    wrong = sum(one.state == "wrong" for one in rows)
    if form == JSON:
        print(json.dumps({"well": not wrong, "checks": [asdict(one) for one in rows]}, indent=2))
    elif form == TEXT:
        made = sum(one.state != "skipped" for one in rows)
        end = f"{wrong} of {made} checks found a fault." if wrong else f"All is well: {made} checks found no fault."
        print(f"\n{end}")
    return not wrong


def settings_or_report(arguments: Sequence[str]) -> None:
    """End the process with a report if the settings are so wrong that no check can be made."""
    (found,) = examine([Check("settings", "Settings", _read_settings)])
    if found.state == "wrong":
        report([found], next((form for form in (JSON, LINES) if f"--{form}" in arguments), TEXT))
        sys.exit(1)


def _read_settings() -> tuple[()]:
    try:
        settings.DEBUG  # noqa: B018 the first access reads them all
    except ImproperlyConfigured as error:
        raise Invalid(str(error)) from None
    return ()


def _lines(one: Finding) -> Iterator[str]:
    yield f"{one.state:<8} {one.title}{f': {one.why}' if one.why else ''}"
    yield from (f"         {fault}" for fault in one.faults)
