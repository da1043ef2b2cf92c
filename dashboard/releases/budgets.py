"""The budget of a model, and whether the newest measurement of a version keeps it. A version that does not may not go live.

Only a measurement of the configuration that would serve counts, because another one may have other instances or batches.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import QuerySet

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor
from dashboard.models import Measurement, Model, Replay, Version
from dashboard.models.measurement import LoadFigures
from dashboard.models.model import Budget
from dashboard.releases.digest import digest_of
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict
from repository.config import version_settings
from repository.config.document import Document
from repository.config.meaning import Meaning, meaning
from repository.core.errors import InvalidConfig
from repository.core.quantities import latency

# A load counts as one of the budget's rate if it reached this share of it, because the number of random arrivals varies.
_REACHED = 0.95
REASON_CHARACTERS = 500

Proof = TypeVar("Proof", Measurement, Replay)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a version keeps the budget. measurement: the one that decided, None for none. why: a clause; "" if it does."""

    measurement: Measurement | None
    why: str

    @property
    def kept(self) -> bool:
        return not self.why


def in_words(budget: Budget) -> str:
    """Return a budget in words: "p99 under 20 ms at 200/s"."""
    return f"p99 under {latency(budget['p99_ms'])} at {budget['per_second']:g}/s"


def newest_measurement(version: Version, document: Document) -> Measurement | None:
    """Return the newest measurement of a version that is done and measured what `document` would serve; None for none."""
    return newest_alike(_done(version), version, document)


def newest_alike(rows: Iterable[Proof], version: Version, document: Document) -> Proof | None:
    """Return the first of these rows that measured or replayed what `document` would serve; None for none."""
    wanted, alike = _served(version, document), dict[tuple[str, str], bool]()
    if wanted is None:
        return None
    for row in rows:
        key = row.config, row.sha256
        if key not in alike:
            measured = Document.read(row.config)
            # The digest differs if slipway.pbtxt of the version was changed afterwards.
            alike[key] = _served(version, measured) == wanted and digest_of(version, measured) == row.sha256
        if alike[key]:
            return row
    return None


def _done(version: Version) -> QuerySet[Measurement]:
    rows = Measurement.objects.filter(version=version, state=MeasurementState.DONE)
    return rows.order_by("-finished_at", "-pk")


def _served(version: Version, document: Document) -> Meaning | None:
    """Return what a configuration means for one version, whichever other versions it serves; None if it has mistakes.

    Aliases and shares of traffic do not count.
    """
    try:
        plain = document.without_traffic().with_aliases({}).message
        folder = managed_repository().version_dir(version.model.name, version.number)
        return meaning(version_settings.as_served(plain, version.number, folder), [version.number])
    except InvalidConfig:
        return None


def newest_figures(versions: Iterable[Version]) -> dict[int, tuple[Measurement, LoadFigures]]:
    """Return the newest measurement of each version that is done, with its load of most requests a second, by number."""
    rows = Measurement.objects.filter(version__in=list(versions), state=MeasurementState.DONE).exclude(loads=[])
    found = {row.version.number: row for row in rows.select_related("version").order_by("finished_at", "pk")}
    return {number: (row, max(row.loads, key=_throughput)) for number, row in found.items()}


def _throughput(figures: LoadFigures) -> float:
    return figures["per_second"]["value"]


def verdict(version: Version, document: Document) -> Verdict | None:
    """Return whether a version with this configuration keeps the budget of its model, or None if the model has no budget."""
    budget = version.model.budget
    if not budget:
        return None
    newest = newest_measurement(version, document)
    if newest is not None:
        return Verdict(newest, _broken(budget, newest.loads))
    other = _done(version).first()
    if other is None:
        return Verdict(None, f"version {version.number} was not measured")
    why = f"version {version.number} was not measured with this configuration, but with another one (measurement {other.pk})"
    return Verdict(None, why)


def refuse_over_budget(*, version: Version, document: Document, actor: Actor, override: str = "") -> None:
    """Raise Conflict if the version does not keep the budget of its model, unless the actor gives a reason to go on.

    document: the configuration that would serve.
    The reason is recorded in the audit trail, in the caller's transaction.
    """
    found, override = verdict(version, document), override.strip()[:REASON_CHARACTERS]
    if found is None or found.kept:
        return
    name, budget = version.model.name, in_words(version.model.budget)
    if not override:
        raise Conflict(
            f"version {version.number} of '{name}' may not go live: {found.why}, and the budget is {budget}. Measure it, or "
            "give a reason to override the budget"
        )
    audit_record(
        actor=actor,
        action="budget.override",
        model=version.model,
        summary=f"Overrode the budget of {name} ({budget}) for version {version.number}: {override}",
        after={"version": version.number, "why": found.why, "reason": override},
    )


def refuse_unmeasured(*, model: Model, number: int) -> None:
    """Raise Conflict, because a version that is not yet published would go live although the model has a budget."""
    raise Conflict(
        f"version {number} of '{model.name}' may not go live before it was measured, because the budget is "
        f"{in_words(model.budget)}: publish it without making it live, and measure it"
    )


def _broken(budget: Budget, loads: list[LoadFigures]) -> str:
    """Return the reason why these loads do not keep the budget; "" if they do. The load with the lowest p99 counts."""
    wanted = budget["per_second"]
    reached = [one for one in loads if one["per_second"]["value"] >= _REACHED * wanted]
    if not reached:
        most = max((one["per_second"]["value"] for one in loads), default=0.0)
        return f"its newest measurement reached {most:.4g}/s"
    answered = [one for one in reached if not one["failures"]]
    if not answered:
        return f"requests failed in its newest measurement at {wanted:g}/s"
    best = min((one["p99_ms"] for one in answered if one["p99_ms"] is not None), key=lambda p99: p99["value"])
    if best["value"] <= budget["p99_ms"]:
        return ""
    spread = f" ± {latency(best['spread'])}" if best["spread"] is not None else ""
    return f"its newest measurement has a p99 of {latency(best['value'])}{spread} at {wanted:g}/s"
