"""From an inspected upload to an immutable version in the managed repository."""

from dashboard.authorisation import Actor
from dashboard.models import Upload, Version


def upload_publish(
    *, upload: Upload, actor: Actor, config_text: str, note: str = "", make_live: bool = False, load: bool = True
) -> Version:
    """One new version, its configuration as a revision, an audit entry. The server may be down: `watch` loads later."""
    raise NotImplementedError


def repository_reconcile() -> list[str]:
    """Brings rows and folders together after a crash or a copy by hand; returns what it did, one sentence each."""
    raise NotImplementedError
