"""Finds and prepares the handler that an archive names: a function, a service class, or a handler of `ts`.

Source: pytorch/serve, docs/custom_service.md.
"""

import importlib
import inspect
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from serving.torchserve.handlers.failures import HandlerProblem

if TYPE_CHECKING:
    from ts.context import Context

Handle = Callable[[list[dict[str, Any]], "Context"], object]

BUILT_IN = (
    "image_classifier",
    "image_segmenter",
    "object_detector",
    "text_classifier",
    "base_handler",
)
ENVELOPES = ("body", "json", "kserve", "kservev2")


class LoadError(HandlerProblem):
    """Raised when a handler cannot be found."""


def load_handler(handler: str, envelope: str, context: "Context") -> Handle:
    """Return the initialized function that answers batches. Errors of the handler's own code are raised unchanged."""
    name, _, function = handler.partition(":")
    module = _module(name)
    found = _function(module, function, context) or _service(module, function, context)
    return _enveloped(found, envelope) if envelope else found


def _module(name: str) -> ModuleType:
    """Import a file of the archive, a handler of `ts`, or another module of that name."""
    path = name.strip().removesuffix(".py").removeprefix("./")
    if "/" in path and not _is_there(path):
        path = path.rpartition("/")[2]  # archivers store a file without its folder
    plain = path.replace("/", ".")
    if _is_there(plain.replace(".", "/")):
        return importlib.import_module(plain)
    if plain in BUILT_IN:
        return importlib.import_module(f"ts.torch_handler.{plain}")
    try:
        return importlib.import_module(plain)
    except ModuleNotFoundError as error:
        if error.name != plain.partition(".")[0]:
            raise
    raise LoadError(f"the archive has no handler '{name}', and it is not one of {', '.join(BUILT_IN)}")


def _is_there(path: str) -> bool:
    """Return whether the archive has a module or a package at a path."""
    return os.path.exists(f"{path}.py") or os.path.isdir(path)


def _function(module: ModuleType, function: str, context: "Context") -> Handle | None:
    """Return the module's function after one call without data, as in TorchServe, or None if there is no such function."""
    found = getattr(module, function or "handle", None)
    if found is None and function:
        raise LoadError(f"the handler's module '{module.__name__}' has no '{function}'")
    if not callable(found) or inspect.isclass(found):
        return None
    handle: Handle = found
    handle(None, context)  # type: ignore[arg-type]
    return handle


def _service(module: ModuleType, name: str, context: "Context") -> Handle:
    """Create the module's service, let it initialize itself, and return its `handle`."""
    service = _service_class(module, name)()
    if not hasattr(service, "handle"):
        raise LoadError(f"the handler's class '{type(service).__name__}' has no method 'handle'")
    if hasattr(service, "initialize"):
        service.initialize(context)
    handle: Handle = service.handle
    return handle


def _service_class(module: ModuleType, name: str) -> type[Any]:
    """Return the class of that name. Without a name, return the module's only class, or its only class with `handle` that has
    no subclass with `handle`."""
    if name:
        return getattr(module, name)  # type: ignore[no-any-return]
    own = [one for _, one in inspect.getmembers(module, inspect.isclass) if one.__module__ == module.__name__]
    if len(own) == 1:
        return own[0]  # the class may have no `handle`, but its instance may
    handling = [one for one in own if callable(getattr(one, "handle", None))]
    found = [one for one in handling if not any(other is not one and issubclass(other, one) for other in handling)]
    if len(found) == 1:
        return found[0]
    what = (
        "several classes that handle: " + ", ".join(one.__name__ for one in found) if found else "no class that handles"
    )
    raise LoadError(
        f"the handler's module '{module.__name__}' has {what}. Expected one class with the method 'handle', or a function "
        "'handle(data, context)'"
    )


def _enveloped(handle: Handle, envelope: str) -> Handle:
    """Return a function that unwraps a handler's inputs from an envelope, and wraps its answers in one."""
    if envelope not in ENVELOPES:
        raise LoadError(f"service envelope '{envelope}' is none of {', '.join(ENVELOPES)}")
    module = importlib.import_module(f"ts.torch_handler.request_envelope.{envelope}")
    enveloped: Handle = module.ENVELOPE(handle).handle
    return enveloped
