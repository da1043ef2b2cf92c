"""Runs and describes workflows: registered ones, or ensembles in a repository that have a workflow specification.

Runs on the event loop's thread.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from repository.torchserve import workflow_models
from repository.torchserve.workflow_models import Described
from repository.torchserve.workflow_spec import WorkflowSpec
from serving.core.errors import ServingError, StepFailed, without_traceback
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest, ParameterValue
from serving.core.response import Answer, InferenceResponse
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.description import page_of
from serving.torchserve.registry.errors import TorchServeError, server_error

log = logging.getLogger(__name__)


class KnownWorkflow(Protocol):
    @property
    def spec(self) -> WorkflowSpec: ...
    @property
    def url(self) -> str: ...


class KnownWorkflows(ABC):
    """See the module's docstring."""

    def __init__(self, server: InferenceServer) -> None:
        self._server = server

    @abstractmethod
    def find(self, name: str) -> KnownWorkflow:
        """Return the workflow of that name. Raises TorchServeError if there is no such workflow."""

    @abstractmethod
    def registered(self) -> dict[str, str]:
        """Return name -> url, sorted by name."""

    # -- descriptions --------------------------------------------------------------------------------------------------
    def page(self, limit: int, first: int) -> dict[str, Any]:
        """Return a page of the workflows, sorted by name."""
        token, rows = page_of(list(self.registered().items()), limit, first)
        return {**token, "workflows": [{"workflowName": name, "workflowUrl": url} for name, url in rows]}

    def describe(self, name: str) -> list[dict[str, Any]]:
        found = self.find(name)
        settings = found.spec.settings
        return [
            {
                "workflowName": name,
                "workflowUrl": found.url,
                "minWorkers": settings.min_workers,
                "maxWorkers": settings.max_workers,
                "batchSize": settings.batch_size,
                "maxBatchDelay": settings.max_batch_delay_ms,
                "workflowDag": found.spec.dag_text,
            }
        ]

    # -- running -------------------------------------------------------------------------------------------------------
    async def run(
        self,
        spec: WorkflowSpec,
        values: Sequence[bytes],
        parameters: Mapping[str, ParameterValue],
        headers: Mapping[str, str],
    ) -> dict[str, bytes]:
        """Return the answer of each leaf to one request. Raises TorchServeError if a node fails after all its retries.

        values, parameters: the parts of the request and their description, as for a prediction. headers: of the client, whose
        token is counted.
        """
        try:
            response = await self._ask(spec, values, parameters, headers)
        except StepFailed as error:
            log.warning("%s", error.message)
            node = error.step.removeprefix(workflow_models.model_name(spec.name, ""))
            raise server_error(f"Error executing {node}") from None
        return {leaf: _bytes(response, leaf) for leaf in spec.leaves}

    async def _ask(
        self,
        spec: WorkflowSpec,
        values: Sequence[bytes],
        parameters: Mapping[str, ParameterValue],
        headers: Mapping[str, str],
    ) -> InferenceResponse:
        answered: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()

        def take(answer: Answer, final: bool) -> None:
            if answered.done():
                return
            if isinstance(answer, ServingError):
                answered.set_exception(without_traceback(answer))
            elif isinstance(answer, InferenceResponse):
                answered.set_result(answer)
            elif final:
                answered.set_exception(server_error("Workflow inference request failed!"))

        data = np.empty((1, len(values)), object)
        data[0, :] = list(values)
        asked = InferenceRequest(spec.name, {workflow_models.input_of(spec): data}, parameters=parameters)
        request = InFlightRequest(asked, CallbackResponder(take))
        self._server.infer(request, "http", headers=headers)
        try:
            return await answered
        finally:
            request.cancel()


class RepositoryWorkflows(KnownWorkflows):
    """The workflows of a model repository, such as the dashboard's repository: its ensembles with a specification."""

    def find(self, name: str) -> Described:
        found = self._described(name)
        if found is None:
            raise workflow_not_found(name)
        return found

    def registered(self) -> dict[str, str]:
        names = sorted({row.name for row in self._server.known_models(ready=True)})
        return {name: found.url for name in names if (found := self._described(name)) is not None}

    def _described(self, name: str) -> Described | None:
        try:
            return workflow_models.described(name, self._server.model_config(name))
        except ServingError:
            return None


def not_found(message: str) -> TorchServeError:
    return TorchServeError(404, "WorkflowNotFoundException", message)


def workflow_not_found(name: str) -> TorchServeError:
    return not_found(f"Workflow not found: {name}")


def _bytes(response: InferenceResponse, leaf: str) -> bytes:
    output = response.outputs.get(leaf)
    value = output.item() if output is not None and output.size == 1 else b""
    return value if isinstance(value, bytes) else str(value).encode()
