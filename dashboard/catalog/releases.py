"""Records which versions a model serves from when, each time that something changes it."""

from collections.abc import Iterable

from django.db.models import F

from dashboard.access.authorisation import Actor
from dashboard.models import Model, Release
from dashboard.shared.choices import DesiredState, VersionState
from repository.config import edit as config_edit
from repository.config import model_config, version_policy
from repository.core.errors import InvalidConfig


def chosen_versions(model: Model, text: str, also: Iterable[int] = ()) -> list[int]:
    """Return the published versions that a configuration serves by its version policy; [] for one with mistakes.

    also: version numbers that count as published.
    """
    numbers = model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True)
    try:
        return version_policy.select(model_config.parse(text), [*numbers, *also])
    except InvalidConfig:
        return []


def text_for_served(model: Model, text: str) -> str:
    """Return an earlier text so that it serves no version that was never served.

    "The latest" meant another version when the text was written than it means now. So the version policy is applied to the
    versions that were ever served; where that gives others than it would now, the text names them (`specific`).
    """
    config = model_config.parse(text)
    published = set(model.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))
    served = published & set().union(*model.releases.values_list("versions", flat=True))
    wanted = version_policy.select(config, served)
    if not wanted or wanted == version_policy.select(config, published):
        return text
    version_policy.set_specific(config, wanted)
    return config_edit.apply(text, config)


def release_record(*, model: Model, actor: Actor, reason: str) -> Release | None:
    """Record the versions that the model serves from now on, where they are others than before."""
    revision = model.revisions.first()
    loaded = model.desired_state == DesiredState.LOADED
    versions = chosen_versions(model, revision.text if revision else "") if loaded else []
    newest = model.releases.first()
    if versions == (newest.versions if newest else []):
        return None
    return Release.objects.create(model=model, versions=versions, reason=reason[:300], actor_name=actor.name)


def generation_bump(model: Model) -> None:
    """Raise the model's generation, by which `watch` sees that the servers have to be told something."""
    Model.objects.filter(pk=model.pk).update(generation=F("generation") + 1)
    model.refresh_from_db(fields=["generation"])
