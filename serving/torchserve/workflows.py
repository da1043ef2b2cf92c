"""TorchServe's workflows: models and functions as the steps of an ensemble, registered, described and run together.

A workflow `wf` is an ensemble of that name; its node `one` is the model `wf__one`. The first node gets the parts of the
request, each other one the bytes that those before it have answered: of one as the part `body`, of several by their names.
Source: docs/workflows.md, docs/workflow_management_api.md of TorchServe 0.12, and what it answers.

Runs on the event loop's thread; files and networks are used on others.
"""

import asyncio
import json
import logging
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from repository.config import model_config
from repository.core import layout
from repository.core.errors import RepositoryError
from repository.files import storage
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.version_settings import MAX_WORKERS, Registering
from serving.core.errors import ServingError, StepFailed
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.core.request import InferenceRequest, ParameterValue
from serving.core.response import Answer, InferenceResponse
from serving.resources.network_thread import NetworkThreads
from serving.server.inference_server import InferenceServer
from serving.torchserve.errors import TorchServeError, bad_request, conflict, server_error
from serving.torchserve.model_store import ModelStore, StoredArchive
from serving.torchserve.registrations import Outcome, Registrations, refuse_missing
from serving.torchserve.workflow_spec import Node, WorkflowSpec, check_archive, read_spec, unpack

log = logging.getLogger(__name__)

PAGE = 100
DEFAULT_TIMEOUT_S = 120
INPUT = "data"


@dataclass(frozen=True, slots=True)
class Workflow:
    """A registered workflow. folder: what was unpacked for it."""

    spec: WorkflowSpec
    url: str
    archive: StoredArchive
    folder: Path

    @property
    def name(self) -> str:
        return self.spec.name


class Workflows:
    """One for each server that models are registered on."""

    def __init__(
        self, server: InferenceServer, options: TorchServeOptions, registrations: Registrations, repository: Path
    ) -> None:
        """repository: the server's folder for registered models; what is unpacked lies beside it. Raises as Registrations."""
        store = options.workflow_store or options.model_store
        assert store is not None
        self._server = server
        self._registrations = registrations
        self._store = ModelStore(store, options.allowed_urls)
        self._repository = repository
        self._folder = repository.parent / "workflows"
        self._workflows: dict[str, Workflow] = {}
        registrations.reserved = self._workflows
        for name, archive in options.snapshot_workflows:
            refuse_missing(self._store, archive, f"workflow '{name}'")
        self._network = NetworkThreads(asyncio.get_running_loop(), 1)
        self._lock = asyncio.Lock()

    # -- what there is -------------------------------------------------------------------------------------------------
    def find(self, name: str) -> Workflow:
        found = self._workflows.get(name)
        if found is None:
            raise workflow_not_found(name)
        return found

    def registered(self) -> dict[str, str]:
        """Return name -> url."""
        return {name: found.url for name, found in sorted(self._workflows.items())}

    async def start(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Register what a snapshot has, by name and url; what cannot be is logged and passed over."""
        for name, url in wanted:
            log.info("registering workflow '%s'", name)
            try:
                await self._register(url, name, DEFAULT_TIMEOUT_S, DEFAULT_TIMEOUT_S)
            except ServingError as error:
                log.warning("workflow '%s' is passed over: %s", name, error.message)

    def page(self, limit: int, first: int) -> dict[str, Any]:
        """Return a page of the workflows, sorted by name."""
        names = sorted(self._workflows)
        if not 0 <= limit <= PAGE:
            limit = PAGE
        first = max(0, first)
        last = first + limit
        token = {"nextPageToken": str(last)} if last <= len(names) else {}
        rows = [{"workflowName": name, "workflowUrl": self._workflows[name].url} for name in names[first:last]]
        return {**token, "workflows": rows}

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

    # -- registering -----------------------------------------------------------------------------------------------
    async def register(
        self,
        url: str | None,
        name: str = "",
        response_timeout_s: int = DEFAULT_TIMEOUT_S,
        startup_timeout_s: int = DEFAULT_TIMEOUT_S,
    ) -> Outcome:
        """Register a workflow with all of its nodes, or none. TorchServeError where that fails."""
        if url is None:
            raise bad_request("Parameter url is required.")
        # It goes on where the client has gone: a workflow is registered as a whole, or not at all.
        name = await asyncio.shield(
            asyncio.ensure_future(self._register(url, name, response_timeout_s, startup_timeout_s))
        )
        await self._registrations.on_changed()
        return Outcome(200, f"Workflow {name} has been registered and scaled successfully.")

    async def _register(self, url: str, name: str, response_timeout_s: int, startup_timeout_s: int) -> str:
        """Return the workflow's name."""
        async with self._lock:
            found = await self._network.run(self._open, url, name)
            name = found.name
            try:
                if name in self._workflows:
                    raise conflict(f"Workflow {name} is already registered.")
                if name in self._registrations.models:
                    raise conflict(f"A model {name} is already registered.")
                await self._start(found, response_timeout_s, startup_timeout_s)
            except BaseException:
                await asyncio.to_thread(self._discard, found)
                raise
            self._workflows[name] = found
        return name

    def _open(self, url: str, name: str) -> Workflow:
        """Find an archive, fetch it if need be, unpack it, and read what it says."""
        try:
            archive = self._store.find(url, check_archive, self._in_use)
        except TorchServeError as error:
            raise _of_workflow(error, url) from None
        self._folder.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            unpack(archive.path, folder / "war")
            found = Workflow(read_spec(folder / "war", name), url, archive, folder)
            for node in found.spec.nodes:
                if not node.url:
                    _write_function(found, node)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if archive.fetched:
                self._store.remove(archive.path)
            raise
        return found

    def _in_use(self, path: Path) -> bool:
        return any(one.archive.path == path for one in list(self._workflows.values()))

    async def _start(self, workflow: Workflow, response_timeout_s: int, startup_timeout_s: int) -> None:
        """Register the nodes and load the ensemble. Where one fails, all are taken away again."""
        nodes = workflow.spec.nodes
        starts = [self._start_node(workflow, node, response_timeout_s, startup_timeout_s) for node in nodes]
        results = await asyncio.gather(*starts, return_exceptions=True)
        failures = [_failure(workflow, node, result) for node, result in zip(nodes, results, strict=True) if result]
        if not failures:
            try:
                await asyncio.to_thread(self._write_ensemble, workflow)
                await self._server.load_registered(workflow.name)
            except (ServingError, RepositoryError) as error:
                failures.append(error.message)
        if failures:
            await self._take_away(workflow)
            told = f"Workflow {workflow.name} has failed to register. Failures: [{', '.join(failures)}]"
            raise TorchServeError(500, "WorkflowException", told)

    async def _start_node(
        self, workflow: Workflow, node: Node, response_timeout_s: int, startup_timeout_s: int
    ) -> None:
        settings = node.settings
        parts = () if not node.sources else ("body",) if len(node.sources) == 1 else node.sources
        asked = Registering(
            url=node.url,
            model_name=model_name(workflow.name, node.name),
            batch_size=settings.batch_size,
            max_batch_delay_ms=settings.max_batch_delay_ms,
            response_timeout_s=response_timeout_s,
            startup_timeout_s=startup_timeout_s,
            parts=parts,
        )
        archive = None if node.url else _function_folder(workflow, node)
        await self._registrations.register_node(asked, min(settings.max_workers, MAX_WORKERS), archive)

    def _write_ensemble(self, workflow: Workflow) -> None:
        folder = self._repository / layout.check_name(workflow.name)
        (folder / "1").mkdir(parents=True, exist_ok=True)
        text = model_config.format(ensemble(workflow.spec))
        storage.write_atomic(folder / layout.CONFIG_FILE, text.encode())

    # -- unregistering ---------------------------------------------------------------------------------------------
    async def unregister(self, name: str) -> Outcome:
        """Let a workflow and its nodes go, once their requests are answered."""
        await asyncio.shield(asyncio.ensure_future(self._unregister(name)))
        await self._registrations.on_changed()
        return Outcome(200, f'Workflow "{name}" unregistered')

    async def _unregister(self, name: str) -> None:
        async with self._lock:
            found = self.find(name)
            del self._workflows[name]
            await self._take_away(found)
            await asyncio.to_thread(self._discard, found)

    async def _take_away(self, workflow: Workflow) -> None:
        """Unload the ensemble and unregister its nodes, as far as they are there."""
        await self._server.unload_registered(workflow.name)
        await self._server.registered_drained(workflow.name)
        await asyncio.to_thread(shutil.rmtree, self._repository / workflow.name, ignore_errors=True)
        for node in workflow.spec.nodes:
            try:
                await self._registrations.unregister(model_name(workflow.name, node.name), None)
            except TorchServeError as error:
                log.debug("a node of '%s': %s", workflow.name, error.message)

    def _discard(self, workflow: Workflow) -> None:
        """Delete what was unpacked, and what was fetched."""
        shutil.rmtree(workflow.folder, ignore_errors=True)
        if workflow.archive.fetched:
            self._store.remove(workflow.archive.path)

    # -- running ---------------------------------------------------------------------------------------------------
    async def run(
        self, workflow: Workflow, values: Sequence[bytes], parameters: Mapping[str, ParameterValue]
    ) -> dict[str, bytes]:
        """Return what each leaf answers to one request; TorchServeError where a node fails as often as it may.

        values, parameters: the parts of the request, as for a prediction.
        """
        attempts = {model_name(workflow.name, node.name): node for node in workflow.spec.nodes}
        attempt = 0
        while True:
            try:
                async with asyncio.timeout(workflow.spec.longest_ms / 1000):
                    response = await self._ask(workflow, values, parameters)
                return {leaf: _bytes(response, leaf) for leaf in workflow.spec.leaves}
            except TimeoutError:
                node, most = "", workflow.spec.settings.retry_attempts
            except StepFailed as error:
                failed = attempts.get(error.step)
                node = failed.name if failed is not None else error.step
                most = failed.settings.retry_attempts if failed is not None else 0
                log.warning("%s", error.message)
            attempt += 1
            if attempt > most:
                raise server_error(
                    f"Error executing {node}" if node else f"Workflow {workflow.name} took longer than its nodes may"
                )

    async def _ask(
        self, workflow: Workflow, values: Sequence[bytes], parameters: Mapping[str, ParameterValue]
    ) -> InferenceResponse:
        answered: asyncio.Future[InferenceResponse] = asyncio.get_running_loop().create_future()

        def take(answer: Answer, final: bool) -> None:
            if answered.done():
                return
            if isinstance(answer, ServingError):
                answered.set_exception(answer)
            elif isinstance(answer, InferenceResponse):
                answered.set_result(answer)
            elif final:
                answered.set_exception(server_error("Workflow inference request failed!"))

        data = np.empty((1, len(values)), object)
        data[0, :] = list(values)
        asked = InferenceRequest(workflow.name, {_input(workflow.spec): data}, parameters=parameters)
        request = InFlightRequest(asked, CallbackResponder(take))
        self._server.infer(request)
        try:
            return await answered
        finally:
            request.cancel()


def ensemble(spec: WorkflowSpec) -> ModelConfig:
    """Return the configuration of the ensemble: each node's answer is a tensor of its name, the leaves' are its outputs."""
    config = ModelConfig(platform="ensemble", max_batch_size=1)
    start = _input(spec)
    config.input.add(name=start, data_type=TYPE_STRING, dims=[-1])
    for leaf in spec.leaves:
        config.output.add(name=leaf, data_type=TYPE_STRING, dims=[1])
    for node in spec.nodes:
        step = config.ensemble_scheduling.step.add(model_name=model_name(spec.name, node.name), model_version=-1)
        if not node.sources:
            step.input_map[INPUT] = start
        elif len(node.sources) == 1:
            step.input_map["body"] = node.sources[0]
        else:
            step.input_map.update({source: source for source in node.sources})
        step.output_map[INPUT] = node.name
    return config


def model_name(workflow: str, node: str) -> str:
    return f"{workflow}__{node}"


def _input(spec: WorkflowSpec) -> str:
    """Return the name of the ensemble's input, which no node has."""
    name = INPUT
    while any(node.name == name for node in spec.nodes):
        name += "_"
    return name


def _function_folder(workflow: Workflow, node: Node) -> Path:
    return workflow.folder / "functions" / node.name


def _write_function(workflow: Workflow, node: Node) -> None:
    """Make an archive, unpacked, whose handler is one function of the workflow's."""
    folder = workflow.folder / "functions" / layout.check_name(node.name)
    folder.parent.mkdir(exist_ok=True)
    storage.link_tree(workflow.folder / "war", folder)
    (folder / "MAR-INF").mkdir(exist_ok=True)
    spec = workflow.spec
    said = {"modelName": node.name, "modelVersion": "1.0", "handler": f"{Path(spec.handler).name}:{node.name}"}
    if spec.requirements:
        said["requirementsFile"] = spec.requirements
    manifest = {"runtime": "python", "model": said}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))


def _failure(workflow: Workflow, node: Node, error: BaseException | None) -> str:
    """Return why a node failed to register, as TorchServe says it."""
    if not isinstance(error, ServingError | RepositoryError):
        log.error("registering a node of workflow '%s' failed", workflow.name, exc_info=error)
        return f"Workflow Node {model_name(workflow.name, node.name)} failed to register. Details: Check error logs."
    if error.message.startswith("Failed to start workers"):
        return error.message
    return f"Workflow Node {model_name(workflow.name, node.name)} failed to register. Details: {error.message}"


def _bytes(response: InferenceResponse, leaf: str) -> bytes:
    output = response.outputs.get(leaf)
    value = output.item() if output is not None and output.size == 1 else b""
    return value if isinstance(value, bytes) else str(value).encode()


def _of_workflow(error: TorchServeError, url: str) -> TorchServeError:
    """Return an error of the store in the words that TorchServe has where workflows are concerned."""
    if error.type == "InvalidModelException":
        return TorchServeError(400, "InvalidWorkflowException", error.message)
    if error.type != "ModelNotFoundException":
        return error
    if error.message.startswith("Model not found at"):
        return _not_found(f"Workflow not found in workflow store: {url}")
    return _not_found(error.message)


def workflow_not_found(name: str) -> TorchServeError:
    return _not_found(f"Workflow not found: {name}")


def _not_found(message: str) -> TorchServeError:
    return TorchServeError(404, "WorkflowNotFoundException", message)
