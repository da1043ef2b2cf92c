"""The artefact of a release: a layer for each file, unpacked, so that `oras pull` writes the folder of the model.

Its media types are those of ModelPack. The same release always gives the same bytes, so the same digest. The signature of a
version, model.sig, is one of its files.
Source: OCI Image Specification 1.1, "Image Manifest"; CNCF ModelPack, model-spec 0.0.7 (docs/spec.md, docs/config.md).
"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dashboard.models import Release
from dashboard.releases.storage import managed_repository
from dashboard.shared.exceptions import Conflict
from dashboard.uploads.sources.registry_client import FILE_PATH, MANIFEST, TITLE
from repository.core.layout import CONFIG_FILE, parse_version
from repository.files import storage
from repository.files.progress import SILENT, Progress

ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
_CONFIG = "application/vnd.cncf.model.config.v1+json"
_WEIGHTS = "application/vnd.cncf.model.weight.v1.raw"
_SETTINGS = "application/vnd.cncf.model.weight.config.v1.raw"
_CODE = "application/vnd.cncf.model.code.v1.raw"
_SETTINGS_ENDINGS = (".pbtxt", ".json", ".txt", ".yaml", ".yml", ".sig")


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in memory, or a file. name: the path in the artefact, "" for the artefact's own configuration."""

    name: str
    size: int
    sha256: str
    source: bytes | Path

    @property
    def digest(self) -> str:
        return f"sha256:{self.sha256}"

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")


def files_of(release: Release) -> dict[str, bytes | Path]:
    """Return the contents of a release by path. Raises Conflict if one of its versions is gone, UnsafePath for a link."""
    repository, name = managed_repository(), release.model.name
    folder = repository.model_dir(name)
    found: dict[str, bytes | Path] = {}
    for path in storage.plain_files(folder):
        if parse_version(path.partition("/")[0]) is None:
            found[path] = folder / path
    # A name would forbid to import it under another one; without it, the folder names the model.
    found[CONFIG_FILE] = release.document.edited(lambda config: config.ClearField("name")).text.encode()
    for number in release.versions:
        places = (repository.version_dir(name, number), repository.archived_version_dir(name, number))
        place = next((one for one in places if one.is_dir()), None)
        if place is None:
            raise Conflict(f"version {number} of release {release.number} is not in the repository any more")
        found |= {f"{number}/{path}": place / path for path in storage.plain_files(place)}
    return found


def hashed(name: str, source: bytes | Path, progress: Progress = SILENT) -> Blob:
    if isinstance(source, bytes):
        return Blob(name, len(source), hashlib.sha256(source).hexdigest(), source)
    entry = storage.hash_file(source, progress)
    return Blob(name, entry.size, entry.sha256, source)


def manifest_of(release: Release, files: list[Blob]) -> tuple[Blob, bytes]:
    """Return the artefact's own configuration, and its manifest. files: the layers."""
    name, made = release.model.name, release.created_at.isoformat()
    content = {
        "descriptor": {"createdAt": made, "name": name, "version": str(release.number)},
        "modelfs": {"type": "layers", "diffIds": [blob.digest for blob in files]},
        "config": {},
    }
    config = hashed("", _json(content))
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTIFACT,
        "config": {"mediaType": _CONFIG, "digest": config.digest, "size": config.size},
        "layers": [_layer(blob) for blob in files],
        "annotations": {
            "org.opencontainers.image.created": made,
            TITLE: name,
            "org.opencontainers.image.version": str(release.number),
        },
    }
    return config, _json(manifest)


def _layer(blob: Blob) -> dict[str, object]:
    kind = _WEIGHTS
    if blob.name.endswith(_SETTINGS_ENDINGS):
        kind = _SETTINGS
    elif blob.name.endswith(".py"):
        kind = _CODE
    named = {TITLE: blob.name, FILE_PATH: blob.name}
    return {"mediaType": kind, "digest": blob.digest, "size": blob.size, "annotations": named}


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
