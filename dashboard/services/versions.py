"""Which version is served: make live, roll back, archive."""

from dashboard.authorisation import Actor
from dashboard.models import ConfigRevision, Model, Version


def version_make_live(*, version: Version, actor: Actor, load: bool = True) -> ConfigRevision:
    """Serves this version alone: version_policy { specific { versions: [N] } } as a configuration revision."""
    raise NotImplementedError


def version_roll_back(*, model: Model, actor: Actor, version: Version | None = None) -> ConfigRevision:
    """Returns to `version`, by default to the one that was served before the present one."""
    raise NotImplementedError


def version_archive(*, version: Version, actor: Actor) -> Version:
    """Takes a version that is not live out of the repository; its files are kept in the archive folder."""
    raise NotImplementedError


def version_restore(*, version: Version, actor: Actor) -> Version:
    """Brings an archived version back; it is not live by that."""
    raise NotImplementedError


def version_annotate(*, version: Version, actor: Actor, note: str) -> Version:
    raise NotImplementedError
