"""Finds versions that should be served and are not, although the model is loaded: somebody moved their folders.

If a folder is missing, the error asks a person to put it back. If the folder is there, the model is loaded again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dashboard.releases.storage import managed_repository
from dashboard.servers.server_state import VersionStatus
from dashboard.shared.choices import ModelStatus
from dashboard.watch.plan import DesiredModel
from dashboard.watch.together import Served
from repository.core.condition import Condition
from repository.core.errors import RepositoryError


@dataclass(frozen=True, slots=True)
class MissingVersions:
    """The missing versions of a model. loadable: whether all their folders are there. error: one sentence."""

    loadable: bool
    error: str


def lacking_versions(
    wanted: Sequence[DesiredModel], statuses: Iterable[VersionStatus], should: Served
) -> dict[str, list[int]]:
    """Return, by name, the versions that models lack of which some but not all wanted versions are served.

    statuses: the server's report. should: what was read with `wanted`. Models whose present generation is not applied yet are
    left out.
    """
    served: dict[str, set[int]] = {}
    for status in statuses:
        if status.state in (ModelStatus.READY, ModelStatus.LOADING) or status.condition == Condition.ASLEEP:
            served.setdefault(status.name, set()).add(status.version)
    lacking: dict[str, list[int]] = {}
    for one in wanted:
        if one.loaded and one.applied_generation == one.generation and one.name in served:
            versions = should.of_releases.get(one.release) if one.release is not None else None
            missing = set(should.of_models.get(one.name, ()) if versions is None else versions) - served[one.name]
            if missing:
                lacking[one.name] = sorted(missing)
    return lacking


def missing_versions(lacking: Mapping[str, list[int]]) -> dict[str, MissingVersions]:
    """Return why these versions are missing, after a look into the repository."""
    return {name: _missing_of(name, versions) for name, versions in lacking.items()}


def _missing_of(name: str, versions: list[int]) -> MissingVersions:
    gone = [version for version in versions if not _has_folder(name, version)]
    if gone:
        numbers = ", ".join(map(str, gone))
        return MissingVersions(
            False,
            f"version {numbers} should be served, but has no folder in the repository; put it back, or serve another version",
        )
    numbers = ", ".join(map(str, versions))
    return MissingVersions(
        True, f"version {numbers} should be served, and the server, asked to load it, has not; load the model again"
    )


def _has_folder(name: str, version: int) -> bool:
    try:
        return managed_repository().has_version(name, version)
    except (RepositoryError, OSError):  # a link that leads elsewhere, a folder that may not be read
        return False
