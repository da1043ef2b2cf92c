"""The outcomes of golden requests' last runs: by a person, or by a server before it served a release."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.utils import timezone

from dashboard.examples.selectors import golden_examples
from dashboard.models import Example, Model, Release
from dashboard.models.example import GoldenOutcome
from dashboard.models.release import CheckStep


def outcomes_of_check(*, release: Release, steps: Iterable[CheckStep]) -> None:
    """Keep the outcomes of a release's check. If several versions ran a golden request, one failure is enough to fail it."""
    checks: list[Mapping[str, Any]] = [check for step in steps for check in step.get("checks", [])]
    checks.sort(key=lambda check: not check["passed"])  # failures last, because the last check of a name counts
    found = {str(check["name"]): outcome(check, release=release.number, checked=True) for check in checks}
    outcomes_keep(model=release.model, outcomes=found)


def outcome(check: Mapping[str, Any], *, release: int, checked: bool) -> GoldenOutcome:
    """Return the outcome of a check. check: it has the fields `passed`, `detail`, `version` and `ms`."""
    return {
        "passed": bool(check["passed"]),
        "detail": str(check.get("detail", "")),
        "version": str(check.get("version", "")),
        "release": release,
        "checked": checked,
        "ms": float(check.get("ms", 0.0)),
        "at": timezone.now().isoformat(),
    }


def outcomes_keep(*, model: Model, outcomes: Mapping[str, GoldenOutcome]) -> None:
    """Store outcomes of golden requests. outcomes: golden request's name -> outcome."""
    rows: Sequence[Example] = list(golden_examples(model).only("name").filter(name__in=outcomes)) if outcomes else ()
    for row in rows:
        row.outcome = outcomes[row.name]
    Example.objects.bulk_update(rows, ["outcome"])
