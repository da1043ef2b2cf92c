"""Finds versions that should be served and are not, although the model is loaded: somebody moved their folders.

If a folder is missing, the error asks a person to put it back. If the folder is there, the model is loaded again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dashboard.catalog.selectors import wanted_versions_of_all
from dashboard.models import Release
from dashboard.releases.storage import managed_repository
from dashboard.servers.server_state import VersionStatus
from dashboard.shared.choices import ModelStatus
from dashboard.watch.plan import DesiredModel
from repository.core.condition import Condition
from repository.core.errors import RepositoryError


@dataclass(frozen=True, slots=True)
class MissingVersions:
    """The missing versions of a model. loadable: whether all their folders are there. error: one sentence."""

    loadable: bool
    error: str


def missing_versions(wanted: Sequence[DesiredModel], statuses: Iterable[VersionStatus]) -> dict[str, MissingVersions]:
    """Return, by name, the models that serve some but not all of their wanted versions.

    statuses: the server's report. Models whose present generation is not applied yet are left out.
    """
    served: dict[str, set[int]] = {}
    for status in statuses:
        if status.state in (ModelStatus.READY, ModelStatus.LOADING) or status.condition == Condition.ASLEEP:
            served.setdefault(status.name, set()).add(status.version)
    applied = [
        one.name for one in wanted if one.loaded and one.applied_generation == one.generation and one.name in served
    ]
    wanted_now = wanted_versions_of_all() if applied else {}
    pinned = {one.release: one.name for one in wanted if one.release is not None and one.name in applied}
    for pk, versions in Release.objects.filter(pk__in=pinned).values_list("pk", "versions"):
        wanted_now[pinned[pk]] = versions
    missing = {name: sorted(set(wanted_now.get(name, ())) - served[name]) for name in applied}
    return {name: _missing_of(name, versions) for name, versions in missing.items() if versions}


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
