"""Whether this installation may control anything. One that was restored from a backup may not until a person says so, because
the original may still run: `manage.py accept control`."""

from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.db.models import F

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM
from dashboard.models import Installation, WatchLease
from dashboard.shared.exceptions import Invalid

# The name of a backup is its time.
BACKUP_NAME = "%Y%m%dT%H%M%SZ"
# Servers refuse the lower fencing numbers of the original's watchers from then on. It takes less than one lease a second.
_AHEAD = 1_000_000_000

_controls = False  # whether this process knows that the installation is in control, which it then stays


def restored_from() -> str:
    """Return the backup from which this installation was restored, or "" if it is in control."""
    global _controls
    if _controls:
        return ""
    found = Installation.objects.exclude(restored="").values_list("restored", flat=True).first() or ""
    _controls = not found
    return found


def backup_time(name: str) -> datetime | None:
    """Return the time of a backup, which is its name; None for ""."""
    return datetime.strptime(name, BACKUP_NAME).replace(tzinfo=UTC) if name else None


def refuse_half_restored() -> None:
    """Raise Invalid if a restore was broken off here."""
    if (settings.SHARED_DIR / "restoring").exists():
        raise Invalid("a restore is under way here, or was broken off: run the same manage.py restore again")


def control_accept() -> bool:
    """Let this installation control its servers, and return whether it did not before. The original's watchers are refused
    from then on by every server that this one's have called."""
    with transaction.atomic():
        if not Installation.objects.exclude(restored="").update(restored=""):
            return False
        WatchLease.objects.update(number=F("number") + _AHEAD)
        audit_record(
            actor=SYSTEM,
            action="installation.control",
            summary="Let the restored installation control its servers",
        )
    return True
