"""The table of the backends that repository/config/backends.py names. Each class is imported when a model first needs it."""

from typing import TYPE_CHECKING

from repository.config.backends import KINDS, BackendKind
from serving.core.errors import invalid, unsupported
from serving.plugins.plugin import imported

if TYPE_CHECKING:
    from serving.backends.base.backend import Backend, ModelSpec


def kind_of(name: str) -> BackendKind:
    """Return the declaration of a backend. Raises INVALID_ARG, which lists the known names, if the backend is unknown."""
    try:
        return KINDS[name]
    except KeyError:
        raise invalid(f"unknown backend '{name}'; expected one of {', '.join(KINDS)}, ensemble") from None


def backend_class(name: str) -> "type[Backend]":
    """Return the class of a backend. Raises INVALID_ARG if the backend is unknown, and UNSUPPORTED if its plugin is not
    installed."""
    place = kind_of(name).class_path
    try:
        found: type[Backend] = imported(place)
    except ModuleNotFoundError as error:
        if not place.startswith(f"{error.name}."):
            raise
        raise unsupported(f"this server was installed without the backend '{name}'") from None
    return found


def make_backend(spec: "ModelSpec") -> "Backend":
    """Make the backend of one model version, without loading it. Its instances run in child processes if the configuration or
    the kind of backend requires it."""
    from serving.backends.child.isolation import isolate, wants_process

    backend = backend_class(spec.config.backend)
    apart = wants_process(spec.config) or KINDS[spec.config.backend].own_process
    return isolate(backend, spec) if apart and not backend.runs_user_code else backend(spec)
