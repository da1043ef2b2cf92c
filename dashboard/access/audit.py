"""The audit trail: one entry for each act of a person or of the system."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from dashboard.access.authorisation import Actor
from dashboard.models import AuditEntry, Model
from repository.core.plain_text import plain

SETTLED_AFTER = timedelta(minutes=1)
_AT_ONCE = 1000  # the most entries that one statement removes, so that no writer waits long

_within_another = ContextVar("within_another", default=False)


@contextmanager
def audit_parts() -> Iterator[None]:
    """Mark the entries recorded in the block as parts of a larger act, which has a separate entry (audit_whole)."""
    before = _within_another.set(True)
    try:
        yield
    finally:
        _within_another.reset(before)


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
    """Write an entry. Call this inside the transaction of the change that the entry describes.

    before, after: the fields that changed, as JSON. model_name: the name of a model that has no row any more.
    """
    return AuditEntry.objects.create(
        actor=actor.user,
        actor_name=actor.name,
        action=action,
        model=model,
        model_name=model_name or (model.name if model else ""),
        summary=_summary(summary),
        before=before or {},
        after=after or {},
        part=_within_another.get(),
    )


def audit_whole(*, actor: Actor, action: str, key: str, summary: str, after: Mapping[str, object]) -> None:
    """Create or update the entry of a larger act (see audit_parts). `key` identifies the entry."""
    entry = AuditEntry.objects.filter(action=action, after__key=key).first()
    if entry is None:
        AuditEntry.objects.create(
            actor=actor.user,
            actor_name=actor.name,
            action=action,
            summary=_summary(summary),
            after={"key": key, **after},
        )
    else:
        entry.summary, entry.after = _summary(summary), {**entry.after, **after}
        entry.save(update_fields=["summary", "after"])


def _summary(text: str) -> str:
    return plain(text)[:500]


def activity(*, model: Model | None = None, action: str = "", actor_name: str = "") -> QuerySet[AuditEntry]:
    """Return the entries, the newest first. They are filtered by the model's name, because entries outlive the model."""
    entries = AuditEntry.objects.select_related("actor", "model")
    if model is not None:
        entries = entries.filter(model_name=model.name)
    if action:
        entries = entries.filter(action=action)
    return entries.filter(actor_name=actor_name) if actor_name else entries


def settled_after(entries: QuerySet[AuditEntry], number: int) -> QuerySet[AuditEntry]:
    """Return the entries after the one with this id, the oldest first, for programs that copy the trail.

    The newest are held back for SETTLED_AFTER: an act that is not committed yet may have a smaller id.
    """
    return entries.filter(pk__gt=number, at__lt=timezone.now() - SETTLED_AFTER).order_by("pk")


def audit_forget() -> int:
    """Remove entries older than settings.AUDIT_DAYS, and return their number. Without that setting, all are kept."""
    if settings.AUDIT_DAYS is None:
        return 0
    old = AuditEntry.objects.filter(at__lt=timezone.now() - timedelta(days=settings.AUDIT_DAYS)).order_by("pk")
    removed = 0
    while ids := list(old.values_list("pk", flat=True)[:_AT_ONCE]):
        removed += AuditEntry.objects.filter(pk__in=ids).delete()[0]
    return removed
