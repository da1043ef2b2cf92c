"""The audit trail: one entry for each thing that somebody, or the system, did."""

from collections.abc import Mapping

from django.db.models import QuerySet

from dashboard.access.authorisation import Actor
from dashboard.models import AuditEntry, Model


def audit_record(
    *,
    actor: Actor,
    action: str,
    summary: str,
    model: Model | None = None,
    model_name: str = "",
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditEntry:
    """Write an entry. Call it inside the transaction of the change that it tells of.

    before, after: the fields that changed, as JSON. model_name: for a model that has no row any more.
    """
    return AuditEntry.objects.create(
        actor=actor.user,
        actor_name=actor.name,
        action=action,
        model=model,
        model_name=model_name or (model.name if model else ""),
        summary=summary[:500],
        before=before or {},
        after=after or {},
    )


def activity(*, model: Model | None = None, action: str = "", actor_name: str = "") -> QuerySet[AuditEntry]:
    """Return the entries, the newest first. Those of a model are found by its name, so that they outlive it."""
    entries = AuditEntry.objects.select_related("actor", "model")
    if model is not None:
        entries = entries.filter(model_name=model.name)
    if action:
        entries = entries.filter(action=action)
    return entries.filter(actor_name=actor_name) if actor_name else entries
