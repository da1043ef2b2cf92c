"""Registers and unregisters TorchServe's workflows, each as an ensemble whose steps are models and functions.

A workflow `wf` is an ensemble of that name. The node `one` of `wf` is the model `wf__one`.
Source: docs/workflows.md, docs/workflow_management_api.md of TorchServe 0.12, and its answers.

Runs on the event loop's thread. Files and networks are used on other threads.
"""

import asyncio
import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from repository.config import model_config
from repository.core import layout
from repository.core.errors import RepositoryError
from repository.files import storage
from repository.torchserve import workflow_models
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.version_settings import DEFAULT_TIMEOUT_S
from repository.torchserve.workflow_spec import InvalidWorkflow, Node, WorkflowSpec, check_archive, read_spec, unpack
from serving.core.errors import ServingError
from serving.resources.network_thread import NetworkThreads
from serving.server.inference_server import InferenceServer
from serving.torchserve.registry.errors import TorchServeError, bad_request, conflict
from serving.torchserve.registry.known_workflows import KnownWorkflows, not_found, workflow_not_found
from serving.torchserve.registry.model_store import ModelStore, StoredArchive
from serving.torchserve.registry.registrations import Outcome, Registrations, refuse_missing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Workflow:
    """A registered workflow. folder: the folder of its unpacked files."""

    spec: WorkflowSpec
    url: str
    archive: StoredArchive
    folder: Path

    @property
    def name(self) -> str:
        return self.spec.name


class Workflows(KnownWorkflows):
    """The registered workflows of one server."""

    def __init__(
        self, server: InferenceServer, options: TorchServeOptions, registrations: Registrations, repository: Path
    ) -> None:
        """repository: the server's folder for registered models. Archives are unpacked next to this folder. Raises the same
        errors as Registrations."""
        store = options.workflow_store or options.model_store
        assert store is not None
        super().__init__(server)
        self._registrations = registrations
        self._store = ModelStore(store, options.allowed_urls)
        self._repository = repository
        self._folder = repository.parent / "workflows"
        self._workflows: dict[str, Workflow] = {}
        self._awaited = dict(options.snapshot_workflows)  # name -> url of workflows that are not registered yet
        registrations.reserved = self._workflows
        for name, archive in options.snapshot_workflows:
            refuse_missing(self._store, archive, f"workflow '{name}'")
        self._network = NetworkThreads(asyncio.get_running_loop(), 1)
        self._lock = asyncio.Lock()

    # -- state ---------------------------------------------------------------------------------------------------------
    def find(self, name: str) -> Workflow:
        found = self._workflows.get(name)
        if found is None:
            raise workflow_not_found(name)
        return found

    def registered(self) -> dict[str, str]:
        """Return name -> url."""
        return {name: found.url for name, found in sorted(self._workflows.items())}

    def remembered(self) -> dict[str, str]:
        """Return name -> url for a snapshot, including the workflows that a start has not registered yet."""
        return dict(sorted((self._awaited | self.registered()).items()))

    async def start(self) -> None:
        """Register the workflows in the snapshot. A workflow that fails is logged and skipped."""
        for name, url in list(self._awaited.items()):
            log.info("registering workflow '%s'", name)
            try:
                await self._register(url, name, DEFAULT_TIMEOUT_S, DEFAULT_TIMEOUT_S)
            except ServingError as error:
                log.warning("workflow '%s' is passed over: %s", name, error.message)
            del self._awaited[name]

    # -- registering -----------------------------------------------------------------------------------------------
    async def register(
        self,
        url: str | None,
        name: str = "",
        response_timeout_s: int = DEFAULT_TIMEOUT_S,
        startup_timeout_s: int = DEFAULT_TIMEOUT_S,
    ) -> Outcome:
        """Register a workflow with all of its nodes. If a node fails, register nothing and raise TorchServeError."""
        if url is None:
            raise bad_request("Parameter url is required.")
        # Continues if the client's request is cancelled, because a workflow is registered as a whole or not at all.
        name = await asyncio.shield(
            asyncio.ensure_future(self._register(url, name, response_timeout_s, startup_timeout_s))
        )
        await self._registrations.on_changed()
        return Outcome(200, f"Workflow {name} has been registered and scaled successfully.")

    async def _register(self, url: str, name: str, response_timeout_s: int, startup_timeout_s: int) -> str:
        """Register a workflow and return its name."""
        try:
            self._store.refuse_unless_allowed(url)
        except TorchServeError as error:
            raise _of_workflow(error, url) from None
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
        """Find an archive, fetch it if necessary, unpack it, and read its specification."""
        try:
            archive = self._store.find(url, check_archive)
        except TorchServeError as error:
            raise _of_workflow(error, url) from None
        self._folder.mkdir(exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        try:
            unpack(archive.path, folder / "war")
            found = Workflow(read_spec(folder / "war", name), url, archive, folder)
            for node in found.spec.nodes:
                if not node.url:
                    workflow_models.write_function(found.spec, node, folder / "war", folder / "functions")
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            self._store.release(archive)
            if isinstance(error, InvalidWorkflow):
                raise TorchServeError(400, error.kind, error.message) from None
            raise
        return found

    async def _start(self, workflow: Workflow, response_timeout_s: int, startup_timeout_s: int) -> None:
        """Register the nodes and load the ensemble. If a node or the ensemble fails, remove all of them."""
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
            message = f"Workflow {workflow.name} has failed to register. Failures: [{', '.join(failures)}]"
            raise TorchServeError(500, "WorkflowException", message)

    async def _start_node(
        self, workflow: Workflow, node: Node, response_timeout_s: int, startup_timeout_s: int
    ) -> None:
        asked = workflow_models.registering(workflow.spec, node, response_timeout_s, startup_timeout_s)
        archive = None if node.url else workflow.folder / "functions" / node.name
        await self._registrations.register_node(asked, workflow_models.workers_of(node), archive)

    def _write_ensemble(self, workflow: Workflow) -> None:
        folder = self._repository / layout.check_name(workflow.name)
        (folder / "1").mkdir(parents=True, exist_ok=True)
        text = model_config.format(workflow_models.ensemble(workflow.spec, workflow.url))
        storage.write_atomic(folder / layout.CONFIG_FILE, text.encode())

    # -- unregistering ---------------------------------------------------------------------------------------------
    async def unregister(self, name: str) -> Outcome:
        """Remove a workflow and its nodes, once their requests are answered."""
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
        """Unload the ensemble and unregister its nodes, as far as they exist."""
        await self._server.unload_registered(workflow.name)
        await self._server.registered_drained(workflow.name)
        self._server.forget_registered(workflow.name)
        await asyncio.to_thread(shutil.rmtree, self._repository / workflow.name, ignore_errors=True)
        for node in workflow.spec.nodes:
            try:
                await self._registrations.unregister(workflow_models.model_name(workflow.name, node.name), None)
            except TorchServeError as error:
                log.debug("a node of '%s': %s", workflow.name, error.message)

    def _discard(self, workflow: Workflow) -> None:
        """Delete the unpacked files, and release the archive."""
        shutil.rmtree(workflow.folder, ignore_errors=True)
        self._store.release(workflow.archive)


def _failure(workflow: Workflow, node: Node, error: BaseException | None) -> str:
    """Return why a node failed to register, in TorchServe's words."""
    name = workflow_models.model_name(workflow.name, node.name)
    if not isinstance(error, ServingError | RepositoryError):
        log.error("registering a node of workflow '%s' failed", workflow.name, exc_info=error)
        return f"Workflow Node {name} failed to register. Details: Check error logs."
    if error.message.startswith("Failed to start workers"):
        return error.message
    return f"Workflow Node {name} failed to register. Details: {error.message}"


def _of_workflow(error: TorchServeError, url: str) -> TorchServeError:
    """Return an error of the store in TorchServe's words for workflows."""
    if error.type == "InvalidModelException":
        return TorchServeError(400, "InvalidWorkflowException", error.message)
    if error.type != "ModelNotFoundException":
        return error
    if error.message.startswith("Model not found at"):
        return not_found(f"Workflow not found in workflow store: {url}")
    return not_found(error.message)
