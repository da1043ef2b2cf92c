"""A model in a Hugging Face cache that lies in an allowed folder.

    models--<organisation>--<name>/refs/<revision>          the commit of a branch or tag
    models--<organisation>--<name>/snapshots/<commit>/...   links into blobs
    models--<organisation>--<name>/blobs/<hash>             a large file has its SHA-256 as its name

Source: huggingface_hub, "Understand caching".
"""

import re
from collections.abc import Mapping
from pathlib import Path

from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.uploads.sources.base import Field, Pieces, Place, SourceFile, model_name_of, required
from dashboard.uploads.sources.folder import Folder, allowed_path, files_below, opened_inside, read_file
from repository.core.errors import UnsafePath
from repository.core.layout import relative_path

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ADDRESS = Field("address", "Folder of the model in the cache", "{place}/models--organisation--name")
_REVISION = Field("revision", "Branch, tag or commit", "main", "One that is in the cache; main if it is empty.", False)


class HuggingFaceCache(Folder):
    name, label, fields = "hugging_face", "a Hugging Face cache", (_ADDRESS, _REVISION)

    def located(self, asked: Mapping[str, str]) -> Place:
        folder = allowed_path(required(asked, _ADDRESS))
        revision = required(asked, _REVISION)
        if folder.parent.name == "snapshots":  # the folder of one revision
            folder, revision = folder.parents[1], folder.name
        snapshots = allowed_path(str(folder / "snapshots"))
        if not snapshots.is_dir():
            raise Invalid.at("address", "expected the folder of a model in a cache, which holds the folder 'snapshots'")
        return {"address": str(folder), "revision": _commit_of(folder, revision or "main")}

    def files(self, place: Place) -> list[SourceFile]:
        snapshot = _snapshot(place)
        return [row._replace(sha256=_sha256_of(snapshot / row.name)) for row in files_below(snapshot)]

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        return read_file(_snapshot(place) / file.name, file, offset)

    def proposed_name(self, place: Place) -> str:
        return model_name_of(place["address"].rpartition("--")[2])

    def title(self, place: Place) -> str:
        return f"{place['address']}, commit {place['revision'][:12]}"


def _snapshot(place: Place) -> Path:
    return allowed_path(str(Path(place["address"]) / "snapshots" / place["revision"]))


def _commit_of(folder: Path, revision: str) -> str:
    """Return the commit that a branch or tag names; a commit names itself. Raises NotFound if it is not in the cache."""
    try:
        relative_path(revision)
    except UnsafePath:
        raise Invalid.at("revision", "expected the name of a branch or tag, or a commit") from None
    commit, ref = revision, folder / "refs" / revision
    if ref.is_file():
        with opened_inside(ref) as file:
            commit = file.read(200).decode("ascii", "replace").strip()
    if "/" in commit or commit in (".", "..") or not commit or not (folder / "snapshots" / commit).is_dir():
        there = sorted(path.name[:12] for path in (folder / "snapshots").iterdir())[:5]
        raise NotFound(
            f"the cache holds no branch, tag or commit '{revision}' of the model; it has {', '.join(there) or 'none'}"
        )
    return commit


def _sha256_of(path: Path) -> str:
    """Return the SHA-256 that the name of a link's target is, or ""."""
    name = path.resolve().name
    return name if path.is_symlink() and _SHA256.fullmatch(name) else ""
