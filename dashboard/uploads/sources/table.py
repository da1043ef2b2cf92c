"""The sources of uploads, by name, in the order in which the page offers them."""

from dashboard.shared.exceptions import Forbidden, Invalid
from dashboard.uploads.sources.base import Source
from dashboard.uploads.sources.bucket import Bucket
from dashboard.uploads.sources.folder import Folder
from dashboard.uploads.sources.hugging_face import HuggingFaceCache
from dashboard.uploads.sources.mlflow import MlflowRegistry
from dashboard.uploads.sources.registry import OciRegistry
from dashboard.uploads.sources.triton import TritonRepository
from dashboard.uploads.sources.url import Url

_ALL: tuple[Source, ...] = (
    Url(),
    Bucket(),
    Folder(),
    TritonRepository(),
    OciRegistry(),
    MlflowRegistry(),
    HuggingFaceCache(),
)
SOURCES = {one.name: one for one in _ALL}


def allowed_sources() -> list[Source]:
    """Return the sources of which an administrator allows any place."""
    return [one for one in SOURCES.values() if one.allowed_places()]


def source_of(name: str) -> Source:
    """Return the source of a name. Raises Invalid if there is none, Forbidden if an administrator allows no place of it."""
    found = SOURCES.get(name)
    if found is None:
        raise Invalid.at("kind", f"expected a source of kind {', '.join(SOURCES)}")
    if not found.allowed_places():
        raise Forbidden(f"nothing may be fetched from {found.label}; an administrator allows places by {found.setting}")
    return found
