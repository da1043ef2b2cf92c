"""What a server should serve: the wanted set of its environment. Only reads; the room `fleet` writes."""

from typing import NamedTuple

from dashboard.models import Model, Server, WantedRelease
from dashboard.shared.choices import DesiredState


class Wanted(NamedTuple):
    """A model of the dashboard on one server. release: the id of the release that is wanted there, None for the newest."""

    model_id: int
    name: str
    loaded: bool
    generation: int
    release: int | None


def wanted_models(server: Server, model_id: int | None = None) -> list[Wanted]:
    """Return every model, or one, with whether it should be loaded on a server; [] if the server is only observed.

    The generation rises with each change of the model, and with each change of the environment's wish.
    """
    if not server.driven:
        return []
    environment = server.environment_id
    everything = server.environment is None or server.environment.everything
    rows = WantedRelease.objects.filter(environment=environment) if environment else WantedRelease.objects.none()
    wished = {
        model: (release, generation)
        for model, release, generation in rows.values_list("model", "release", "generation")
    }
    models = Model.objects.all() if model_id is None else Model.objects.filter(pk=model_id)
    found = []
    for pk, name, state, generation in models.values_list("pk", "name", "desired_state", "generation"):
        release, more = wished.get(pk, (None, 0))
        loaded = state == DesiredState.LOADED if everything else pk in wished
        found.append(Wanted(pk, name, loaded, generation + more, release))
    return found


def wanted_generation(server: Server, model_id: int) -> int | None:
    """Return the present generation of a model on a server, or None if it is not wanted or unwanted there."""
    found = wanted_models(server, model_id)
    return found[0].generation if found else None
