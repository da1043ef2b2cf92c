"""A model as a whole: load, unload, describe, delete."""

from dashboard.authorisation import Actor, Right, require
from dashboard.choices import DesiredState
from dashboard.models import Model


def model_load(*, model: Model, actor: Actor) -> Model:
    """Asks for the model to be served; `watch` makes it so. Also retries a model that failed."""
    return _want(model, DesiredState.LOADED, actor)


def model_unload(*, model: Model, actor: Actor) -> Model:
    """Asks for the model to be taken out of service; requests under way are finished."""
    return _want(model, DesiredState.UNLOADED, actor)


def _want(model: Model, desired: DesiredState, actor: Actor) -> Model:
    require(actor, Right.OPERATE)
    raise NotImplementedError


def model_describe(
    *, model: Model, actor: Actor, description: str | None = None, tags: list[str] | None = None
) -> Model:
    raise NotImplementedError


def model_delete(*, model: Model, actor: Actor, confirm_name: str) -> None:
    """Takes an unloaded model out of the repository; its files go to the archive. `confirm_name` must be its name."""
    raise NotImplementedError
