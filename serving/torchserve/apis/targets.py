"""Finds the version that a prediction names, and how it takes requests. Both are cached until its configuration changes."""

from collections.abc import Sequence

import numpy as np
from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from serving.core.datatypes import Tensor
from serving.core.errors import Code, ServingError
from serving.core.in_flight import Observer
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.errors import TorchServeError, WorkersStarting, model_not_found, no_worker, not_served
from serving.torchserve.registry.registrations import RETRIED_S, Registrations
from serving.torchserve.registry.version_names import resolve
from serving.torchserve.telemetry.metrics import InferenceMetrics

INPUT = "data"
MAX_REMEMBERED = 10_000


class Target:
    """A version under the name that a client uses.

    number: the number of the version; "" for the server's default. handler: whether the version takes the parts of a request,
    not tensors by their names. streams: whether it may answer in pieces. observers: objects that count its predictions.
    """

    __slots__ = ("config", "handler", "number", "observers", "rows", "streams")

    def __init__(self, number: str, config: ModelConfig, observers: tuple[Observer, ...]) -> None:
        inputs = config.input
        self.number = number
        self.config = config
        self.observers = observers
        self.rows = config.max_batch_size > 0  # whether tensors have a batch dimension
        self.handler = len(inputs) == 1 and inputs[0].name == INPUT and inputs[0].data_type == TYPE_STRING
        self.streams = config.model_transaction_policy.decoupled

    def tensor(self, values: Sequence[bytes]) -> Tensor:
        """Return the parts of one request as a tensor of BYTES: [1, parts], or [parts] without a batch dimension."""
        count = len(values)
        tensor = np.empty((1, count) if self.rows else count, np.object_)
        if count == 1:
            tensor.fill(values[0])
        else:
            flat = tensor.reshape(-1)
            for index, value in enumerate(values):
                flat[index] = value
        return tensor


class Targets:
    """Finds the targets of predictions among the registered models or, without registrations, in the model repository."""

    def __init__(
        self,
        server: InferenceServer,
        metrics: InferenceMetrics,
        registrations: Registrations | None = None,
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._registrations = registrations
        self._known: dict[tuple[str, str], Target] = {}

    def find(self, model: str, version: str, predicts: bool = True) -> Target:
        """Return the target of a request. Raises TorchServeError for a model or version that is unknown or has no worker.

        predicts: whether a refusal for lack of workers counts as a prediction."""
        known = self._known.get((model, version))
        try:
            if known is not None and self._server.answering_config(model, known.number) is known.config:
                return known
            number = self._number(model, version)
            config = self._server.answering_config(model, number)
        except ServingError as error:
            refusal = self._refusal(error, model, version)
            waits = isinstance(refusal, WorkersStarting)
            if predicts and isinstance(refusal, TorchServeError) and refusal.status == 503 and not waits:
                self._metrics.series(model, version).requests += 1
            raise refusal from None
        found = Target(number, config, self._metrics.series(model, version).observers)
        self._known[model, version] = found
        return found

    def _number(self, model: str, version: str) -> str:
        """Return the version's number on the server, or "" for the default version."""
        if self._registrations is None:
            return resolve(self._server, model, version) if version else ""
        # Checked first: if the default version has no workers, another version must not answer for it.
        found = self._registrations.serving(model, version or None)
        return str(found.number) if version else ""

    def _refusal(self, error: ServingError, model: str, version: str) -> ServingError:
        """Return the error for a client if no version answers, and forget the target."""
        self._known.pop((model, version), None)
        if error.code not in (Code.NOT_FOUND, Code.UNAVAILABLE) or isinstance(error, TorchServeError):
            return error
        if self._registrations is not None:
            return self._unregistered(self._registrations, model, version)
        if not version and self._server.has_model(model):
            return not_served(model)
        return error if version and self._server.knows_model(model) else model_not_found(model)

    def _unregistered(self, registrations: Registrations, model: str, version: str) -> ServingError:
        """Return why a registered model does not answer. If there is no other reason, the model's workers have just ended."""
        try:
            registrations.serving(model, version or None)
        except ServingError as error:
            return error
        return no_worker(model, version)

    # -- all models ------------------------------------------------------------------------------------------------
    def models(self) -> list[str]:
        """Return the names of the models that serve, sorted."""
        return sorted({row.name for row in self._server.known_models(ready=True)})

    def healthy(self) -> bool:
        """Return whether every model has its workers, as in TorchServe's /ping. Workers being retried count as present."""
        if self._registrations is not None:
            return self._registrations.healthy()
        return not any(down_s > RETRIED_S for name in self.models() for down_s in self._server.downtimes_s(name))
