"""A model's own code: imports, creates and calls the class TritonPythonModel of its file.

Source: README of triton-inference-server/python_backend, "Python Backend API".
"""

import asyncio
import importlib.util
import inspect
import sys
import threading
import types
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, TypeVar

from serving.child_program.pb_utils import c_python_backend_utils
from serving.child_program.pb_utils import triton_python_backend_utils as pb_utils
from serving.child_program.pb_utils.process import PROCESS
from serving.child_program.pb_utils.request import ReceivedRequest

sys.modules["triton_python_backend_utils"] = pb_utils
sys.modules["c_python_backend_utils"] = c_python_backend_utils

Result = TypeVar("Result")


class TritonPythonModel(Protocol):
    """The methods of a model's class. Only `execute` is required. The result of `execute` is checked."""

    def initialize(self, args: dict[str, str]) -> None: ...

    def execute(self, requests: list[ReceivedRequest]) -> object: ...

    def is_ready(self) -> object: ...

    def finalize(self) -> None: ...


def import_model(model_file: Path) -> type[TritonPythonModel]:
    """Return the class TritonPythonModel of a file, which may use absolute and relative imports of modules in its folder."""
    PROCESS.model_dir = str(model_file.parent)
    sys.path += [str(model_file.parent), str(model_file.parent.parent)]
    package = types.ModuleType(model_file.parent.name)
    package.__path__ = [str(model_file.parent)]
    sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{model_file.stem}", model_file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        found: type[TritonPythonModel] = module.TritonPythonModel
    except AttributeError:
        raise pb_utils.TritonModelException(f"{model_file.name} has no class TritonPythonModel") from None
    return found


class PythonModel:
    """An initialized TritonPythonModel. Exceptions of the model's methods are not caught."""

    def __init__(self, model_file: Path, args: dict[str, str]) -> None:
        model_class = import_model(model_file)
        if not callable(getattr(model_class, "execute", None)):
            raise pb_utils.TritonModelException("the class TritonPythonModel has no method 'execute'")
        self._model = model_class()
        self._event_loop = EventLoop()
        if hasattr(self._model, "initialize"):
            self._model.initialize(args)
        self.has_is_ready = hasattr(self._model, "is_ready")

    def execute(self, requests: list[ReceivedRequest]) -> object:
        """Call `execute` and return its result, which is a coroutine if the model uses `async def`."""
        return self._model.execute(requests)

    def start(self, coroutine: Coroutine[object, None, Result]) -> "Future[Result]":
        """Run a coroutine of the model, with the caller's context variables. Callable on any thread."""
        return self._event_loop.start(coroutine)

    def is_ready(self) -> bool:
        """Ask the model whether it is ready. Callable on any thread."""
        ready = self._model.is_ready()
        if inspect.iscoroutine(ready):
            ready = self.start(ready).result()
        if not isinstance(ready, bool):
            raise pb_utils.TritonModelException(f"is_ready must return a boolean, not {type(ready).__name__}")
        return ready

    def finalize(self) -> None:
        if hasattr(self._model, "finalize"):
            self._model.finalize()


class EventLoop:
    """One event loop for all coroutines of a model, on a separate thread. A later call can thus use a connection that an
    earlier call has opened.

    The loop starts at its first use. Coroutines of several batches, and of is_ready, run on it concurrently.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def start(self, coroutine: Coroutine[object, None, Result]) -> "Future[Result]":
        """Start a coroutine, with the caller's context variables. Callable on any thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="execute", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
