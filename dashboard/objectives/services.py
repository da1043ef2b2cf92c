"""Sets and removes the objective of a model."""

import math

from django.db import transaction

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor, Right, require
from dashboard.models import Model, Objective, ObjectiveCount
from dashboard.shared.exceptions import Invalid

LEAST_PERCENT, MOST_PERCENT = 50.0, 99.999
MOST_LATENCY_MS = 3_600_000.0


def objective_set(
    *, model: Model, actor: Actor, percent: float | None, latency_ms: float | None = None
) -> Objective | None:
    """Set the objective of a model, or remove it if `percent` is None. Raises Invalid if a number is not allowed."""
    require(actor, Right.OPERATE)
    if percent is None:
        if latency_ms is not None:
            raise Invalid.at("percent", "a latency alone is no objective: say for how many per cent of the requests")
    elif not (math.isfinite(percent) and LEAST_PERCENT <= percent <= MOST_PERCENT):
        raise Invalid.at("percent", f"expected {LEAST_PERCENT:g} to {MOST_PERCENT:g} per cent, got {percent:g}")
    if latency_ms is not None and not (math.isfinite(latency_ms) and 0 < latency_ms <= MOST_LATENCY_MS):
        raise Invalid.at("latency_ms", f"expected milliseconds from 0 to {MOST_LATENCY_MS:g}, got {latency_ms:g}")
    with transaction.atomic():
        model = Model.locked(model.pk)
        before = Objective.objects.filter(model=model).select_for_update().first()
        if (before.percent, before.latency_ms) == (percent, latency_ms) if before else percent is None:
            return before
        found, facts = None, _facts(before)
        if percent is None:
            Objective.objects.filter(model=model).delete()
        else:
            found = before or Objective(model=model)
            if before is None or before.latency_ms != latency_ms:
                found.counted = False  # slow requests are counted again
                ObjectiveCount.objects.filter(objective_id=found.pk).delete()
            found.percent, found.latency_ms = percent, latency_ms
            found.save()
        words = f"Set the objective of {model.name}: {found.in_words}" if found else ""
        audit_record(
            actor=actor,
            action="objective.set",
            model=model,
            summary=words or f"Removed the objective of {model.name}",
            before=facts,
            after={} if percent is None else {"percent": percent, "latency_ms": latency_ms},
        )
    return found


def _facts(objective: Objective | None) -> dict[str, object]:
    return {} if objective is None else {"percent": objective.percent, "latency_ms": objective.latency_ms}
