"""The identity of this machine."""

import os
import secrets
from contextlib import suppress

from django.conf import settings


def machine_identity() -> str:
    """Return the identity of this machine: of its data folder, which outlives the names of containers."""
    path = settings.DATA_DIR / "machine"
    with suppress(FileExistsError), os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(16))
    return str(path.read_text())
