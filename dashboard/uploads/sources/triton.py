"""A model of a Triton repository in an allowed folder or bucket: its config.pbtxt, and the files of one version.

Source: Triton, docs/user_guide/model_repository.md, "Repository Layout".
"""

from collections.abc import Iterable, Mapping

from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.uploads.sources.base import Field, Pieces, Place, Source, SourceFile, model_name_of, required
from dashboard.uploads.sources.bucket import Bucket
from dashboard.uploads.sources.folder import Folder
from repository.core.layout import CONFIG_FILE, parse_version
from repository.remote.address import is_remote

_ADDRESS = Field(
    "address", "Folder of the model", "{place}/resnet50", "The folder that holds config.pbtxt and the versions."
)
_VERSION = Field("version", "Version", "3", "The number of a version folder; the highest one if it is empty.", False)


class TritonRepository(Source):
    name, label, fields = "triton", "a Triton repository", (_ADDRESS, _VERSION)
    setting = "SLIPWAY_SOURCE_FOLDERS or SLIPWAY_SOURCE_BUCKETS"

    def allowed_places(self) -> list[str]:
        return [*Folder().allowed_places(), *Bucket().allowed_places()]

    def located(self, asked: Mapping[str, str]) -> Place:
        place = {"address": required(asked, _ADDRESS).rstrip("/"), "version": required(asked, _VERSION)}
        chosen = version_among(_store(place).files(place), place["version"])
        if not chosen:
            raise Invalid.at("address", "there is no folder of a version, such as 1, at this address")
        return {**place, "version": chosen}

    def files(self, place: Place) -> list[SourceFile]:
        return [row for row in _store(place).files(place) if belongs(row, place["version"])]

    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        return _store(place).read(place, file, offset)

    def proposed_name(self, place: Place) -> str:
        return model_name_of(place["address"])

    def title(self, place: Place) -> str:
        return f"{place['address']}, version {place['version']}"


def _store(place: Place) -> Source:
    return Bucket() if is_remote(place["address"]) else Folder()


def _top(row: SourceFile) -> str:
    """Return the folder, directly in the model's folder, that holds a file; "" for a file in no folder."""
    return row.name.partition("/")[0] if "/" in row.name else ""


def version_among(rows: Iterable[SourceFile], asked: str) -> str:
    """Return the version that was asked for, by default the highest one; "" if the files are in no folders of versions.

    Raises NotFound if these files have other versions.
    """
    versions = {top for top in map(_top, rows) if parse_version(top) is not None}
    chosen = asked or max(versions, key=int, default="")
    if versions and chosen not in versions:
        raise NotFound(f"the model has no version {chosen}; it has {', '.join(sorted(versions, key=int))}")
    return chosen if versions else ""


def belongs(row: SourceFile, version: str) -> bool:
    """Return whether a file is the configuration, lies next to it, or is of the version."""
    return row.name == CONFIG_FILE or _top(row) in ("", version) or parse_version(_top(row)) is None
