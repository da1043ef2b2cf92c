"""The digest of a measured configuration."""

import hashlib

from dashboard.models import Version
from dashboard.releases.storage import managed_repository
from repository.config import model_config
from repository.config.document import Document
from repository.core.layout import OVERLAY_FILE


def digest_of(version: Version, document: Document) -> str:
    """Return the SHA-256 of the configuration's text and of the settings in the version's slipway.pbtxt, if it has one.

    Raises InvalidConfig if slipway.pbtxt cannot be read.
    """
    content = document.text.encode()
    overlay = managed_repository().version_dir(version.model.name, version.number) / OVERLAY_FILE
    if overlay.is_file():
        content += b"\0" + model_config.parse_file(overlay).SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest()
