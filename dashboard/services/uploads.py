"""Files on their way in: resumable, hashed, bounded, named by us."""

from typing import Any

from dashboard.authorisation import Actor
from dashboard.models import Job, Upload


def upload_create(*, actor: Actor, model_name: str, files: list[dict[str, Any]]) -> Upload:
    """`files`: [{"path": relative path, "size": bytes, "sha256": hex, optional}]. The order numbers them from 0."""
    raise NotImplementedError


def upload_receive_chunk(*, upload: Upload, number: int, offset: int, chunk: bytes, sha256: str = "") -> int:
    """Appends a chunk (at most 8 MiB) to file `number`; returns how many bytes it has now. WrongOffset says where to go on."""
    raise NotImplementedError


def upload_complete(*, upload: Upload, actor: Actor) -> Job:
    """All bytes are here: queues the inspection."""
    raise NotImplementedError


def upload_cancel(*, upload: Upload, actor: Actor) -> None:
    raise NotImplementedError


def uploads_expire() -> int:
    """Ends uploads that nobody continued in time, and removes their bytes; returns how many."""
    raise NotImplementedError
