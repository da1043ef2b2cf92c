"""The protocol-neutral facade that every frontend calls.

Answers are the protobuf messages of Triton's gRPC service, which the HTTP frontend renders as JSON. Everything here runs on
the event loop's thread and raises ServingError.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.server_version import VERSION, with_build
from serving.captures.captures import Captures
from serving.cli.options import Options
from serving.compiled.loading import Compiled
from serving.core.datatypes import BY_CONFIG
from serving.core.errors import Code, NotYet, ServingError, not_found, safely, unavailable, unexpected
from serving.core.in_flight import InFlightRequest, ReceiveTimes
from serving.core.model_identifier import ModelIdentifier
from serving.core.tensor_check import wire_shape
from serving.execution.readiness import CanConfirm, confirm_ready
from serving.extensions.shared_memory import SharedMemory
from serving.models.golden_requests import GoldenCheck
from serving.models.load_report import LoadReport
from serving.models.model_lifecycle import MalformedVersion, check_requested_version
from serving.models.model_repository_manager import ModelProcess, ModelRepositoryManager
from serving.models.repository_index import IndexRow, VersionHealth
from serving.resources.request_memory import RequestMemory
from serving.resources.response_cache import ResponseCache
from serving.telemetry.logs import LogSettings
from serving.telemetry.request_log import RequestLog
from serving.telemetry.statistics import ModelStatistics, fill_statistics
from serving.telemetry.traces.opentelemetry import OpenTelemetryTrace
from serving.telemetry.traces.trace_file import TraceFile
from serving.telemetry.traces.trace_settings import TraceSettings
from serving.telemetry.traffic_samples import Sampling, TrafficSampler
from serving.traffic.mismatches import Mismatch
from serving.traffic.rollout import Rollout
from serving.usage.ledger import Ledger

log = logging.getLogger(__name__)

FIRST_LIST_S = 1.0  # pause between two attempts to list the repositories, until each has been listed once

SHOWN_MODELS = 5  # the number of models that the reason of the readiness names

EXTENSIONS = (
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "logging",
    "trace",
    "generate",
)


def running_version() -> str:
    """Return the version for the server's metadata. It also says whether compiled modules are used."""
    return with_build(VERSION, Compiled.used)


class InferenceServer:
    """One server: the models of its repositories, the state that they share, and their statistics."""

    def __init__(self, options: Options, log_settings: LogSettings | None = None) -> None:
        self.options = options
        self.log_settings = log_settings or LogSettings.from_options(options)
        self.shared_memory = SharedMemory(options.allow_client_shm)
        self.request_memory = RequestMemory(options.request_memory_limit)
        self.request_log = RequestLog.from_options(options)
        self.trace_settings = TraceSettings(options.trace_config)
        self._trace_file = TraceFile(self.trace_settings)
        self._tracer = OpenTelemetryTrace.from_options(options)
        self._sampler = TrafficSampler(not (options.http_header_forward_pattern or options.grpc_header_forward_pattern))
        self._captures = Captures(options.capture_folder, self._choose_observed)
        self._always_observed = self.request_log is not None or self._tracer is not None
        self._followed = (
            self._always_observed
        )  # whether any observer other than the trace file and captures sees requests
        self._observed = self._always_observed  # the same, with captures
        loop = asyncio.get_running_loop()
        self._manager = ModelRepositoryManager(options, loop, self, lambda: self.request_memory)
        self.rollouts = self._manager.rollouts
        self.rollouts.on_headers(self._choose_observed)
        self._ledger = Ledger(options, self._manager.knows) if options.auth_file is not None else None
        self._started = False
        self._complete = False  # True after every repository was listed and the first load of each model has ended
        self._stopping = False  # True when the shutdown has begun: the server reports not ready
        self._draining = False  # True when new requests are refused
        self._poller: asyncio.Task[None] | None = None

    # -- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Load the models that the control mode requires. With --exit-on-error, raise ServingError if a model fails to load."""
        options = self.options
        if self._ledger is not None:
            self._ledger.start(asyncio.get_running_loop())
        for folder in self._manager.missing_repositories():
            log.error("failed to poll model repository '%s': there is no such folder; not ready until there is", folder)
        failures = await self._load_first()
        if failures and options.exit_on_error:
            reasons = "; ".join(error.message for _, error in failures)
            raise ServingError(Code.INTERNAL, f"failed to load all models: {reasons}")
        follows = options.model_control_mode == "poll" or self._manager.has_remote
        if not self._complete or (follows and options.repository_poll_secs):
            self._poller = asyncio.get_running_loop().create_task(self._poll())
        self._started = True

    async def _load_first(self) -> list[tuple[str, ServingError]]:
        """Load the models that the control mode requires, except those already known. Return the failures."""
        options, manager = self.options, self._manager
        if options.model_control_mode == "poll":
            failures = await manager.poller.poll()
        else:
            failures = await manager.poller.list_models()
            if manager.all_listed or not self._started:
                wanted = list(options.load_model) if options.model_control_mode == "explicit" else ["*"]
                names = manager.names() if "*" in wanted else wanted
                failures += await manager.loader.load_many([name for name in names if not manager.knows(name)])
        if manager.all_listed:
            self._complete = True
            manager.index.end_start()
        return failures

    def stop(self) -> None:
        """Report not ready, and refuse to load models. Inference requests are still accepted."""
        self._stopping = True
        if self._poller is not None:
            self._poller.cancel()

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests (UNAVAILABLE), finish the requests under way, and unload every model. Give up at the timeout."""
        self.stop()
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._manager.shutdown()
        except TimeoutError:
            log.warning("requests were still under way after %g s; ending without them", self.options.exit_timeout_secs)
        finally:  # the log and the traces are closed last, because the last requests still write to them
            await self._captures.close()
            if self.request_log is not None:
                await asyncio.to_thread(self.request_log.close)
            if self._tracer is not None:
                await asyncio.to_thread(self._tracer.close)
            if self._ledger is not None:
                await self._ledger.close()
            await asyncio.to_thread(self._trace_file.close)

    async def _poll(self) -> None:
        options = self.options
        interval_s = options.repository_poll_secs
        while interval_s or not self._complete:
            await asyncio.sleep(interval_s if self._complete else min(interval_s or FIRST_LIST_S, FIRST_LIST_S))
            try:
                if not self._complete:
                    await self._load_first()
                elif options.model_control_mode == "poll":
                    await self._manager.poller.poll()
                else:
                    await self._manager.poller.list_models()
            except Exception:
                log.exception("polling the model repository failed; trying again")

    # -- health ----------------------------------------------------------------------------------------------------
    def live(self) -> bool:
        """Return whether every model repository exists, as in Triton."""
        return not self._manager.missing_repositories()

    def started(self) -> bool:
        """Return whether the start is complete, and the shutdown has not begun."""
        return self._started and not self._stopping

    def ready(self) -> bool:
        """Return whether the server is live and started, has listed every repository, and is not shutting down. With
        --strict-readiness every model that should be loaded must serve, too, unless another option says that it may fail."""
        if not self._started or not self._complete or self._stopping or not self.live():
            return False
        return not self._keeping_unready()

    def _keeping_unready(self) -> list[str]:
        """Return the models that keep the server from being ready; none without --strict-readiness."""
        options = self.options
        if not options.strict_readiness:
            return []
        return self._manager.index.keeping_unready(
            despite_failed=options.ready_despite_failed_models, despite_new=options.ready_despite_new_models
        )

    def unready_because(self) -> str:
        """Return why the server is not ready, as a clause; "" if only a model's own readiness check says so."""
        if self._stopping or not self._started:
            return "it is shutting down" if self._stopping else "it has not loaded its models yet"
        if not self._complete or not self.live():
            problems = [f"{place}: {problem}" for place, problem in self._manager.listing_problems.items() if problem]
            return "; ".join(["a model repository has not been listed yet", *problems])
        names = self._keeping_unready()
        more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
        return "these models do not serve: " + ", ".join(names[:SHOWN_MODELS]) + more if names else ""

    def unready_models(self) -> dict[str, list[str]]:
        """Return the models that should serve and do not, as RepositoryIndex.unready_models."""
        return self._manager.index.unready_models()

    def listing_problems(self) -> dict[str, str]:
        """Return a dict of each repository -> why its last listing failed, or ""."""
        return self._manager.listing_problems

    def repositories_from_cache(self) -> dict[str, bool]:
        """Return a dict of each repository in the cloud -> whether it has only shown what the cache had at the start."""
        return self._manager.repositories_from_cache

    def held_models(self) -> list[str]:
        """Return the models that are gone from the repositories, but are kept by --max-unloads-per-poll, sorted."""
        return sorted(model.name for model in self._manager.poller.held)

    def confirm_unloads(self) -> list[str]:
        """Let the next poll unload the models that are gone from the repositories. Return their names."""
        self._refuse_while_stopping()
        return self._manager.poller.confirm_unloads()

    def model_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model can answer. An unknown model cannot. Raises MalformedVersion if the version is neither a
        number nor an alias of the model."""
        if version not in ("", "-1"):
            check_requested_version(version)
        try:
            model = self._manager.resolve(name, version)
        except MalformedVersion:
            raise
        except ServingError:
            return False
        complete = not self._manager.index.unready_step(model, model.statistics.namespace)
        return complete and self._started and not self._stopping

    async def confirm_ready(self) -> bool:
        """Return the result of `ready`. With --strict-readiness, also ask the models that have a readiness check."""
        return self.ready() and (not self.options.strict_readiness or await self._manager.index.confirm_all_ready())

    def unready_reason(self, name: str, version: str = "") -> str:
        """Return which step or instance keeps a loaded model from answering; "" if none does, or if the model is not loaded.

        Raises NotYet if the model is about to be loaded.
        """
        try:
            model = self._manager.resolve(name, version)
            step = self._manager.index.unready_step(model, model.statistics.namespace)
            return step or "; ".join(model.unready_reasons())
        except NotYet:
            raise
        except ServingError:
            return ""

    async def confirm_model_ready(self, name: str, version: str = "") -> bool:
        """Return the result of `model_ready`. Also ask the model, if it has a readiness check."""

        def current() -> CanConfirm | None:
            return self._manager.resolve(name, version) if self.model_ready(name, version) else None

        return await confirm_ready(current)

    def update_trace_settings(self, model: str, changes: Mapping[str, list[str] | None]) -> None:
        """Change the trace settings of a model, or of the server if `model` is "". Raises NOT_FOUND for an unknown model."""
        self._refuse_unknown_model(model)
        self.trace_settings.update(model, changes)

    def trace_values(self, model: str = "") -> dict[str, list[str]]:
        self._refuse_unknown_model(model)
        return self.trace_settings.values(model)

    def _refuse_unknown_model(self, model: str) -> None:
        if model and not self._manager.has(model):
            raise not_found(f"Request for unknown model : {model[:200]} is not found")

    # -- description -----------------------------------------------------------------------------------------------
    def metadata(self) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(name=self.options.server_id, version=running_version(), extensions=EXTENSIONS)

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse:
        config = self._manager.resolve(name, version).config
        versions = [str(number) for number in self._manager.ready_versions(name)]
        platform = config.platform or config.backend
        answer = pb.ModelMetadataResponse(name=name, versions=versions, platform=platform)
        for tensors, described in ((config.input, answer.inputs), (config.output, answer.outputs)):
            for tensor in tensors:
                described.add(
                    name=tensor.name, datatype=BY_CONFIG[tensor.data_type].name, shape=wire_shape(tensor, config)
                )
        return answer

    def has_model(self, name: str) -> bool:
        """Return whether a model of that name is or was loaded, or is in a repository."""
        return self._manager.has(name)

    def knows_model(self, name: str) -> bool:
        """Return whether a model of that name is or was loaded."""
        return self._manager.knows(name)

    def resolved_version(self, name: str, version: str = "") -> int:
        """Return the number of the version that answers a request for `version`; "" means the default version."""
        return self._manager.resolve(name, version).spec.version

    def ready_versions(self, name: str) -> list[int]:
        """Return the numbers of the versions that take requests. Raises NOT_FOUND for an unknown model."""
        return self._manager.ready_versions(name)

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the configuration that the model uses, with its auto-completed fields."""
        return self._manager.resolve(name, version).config

    def answering_config(self, name: str, version: str = "") -> ModelConfig:
        """Return the configuration for decoding an inference request. If no version serves, count the request as unserved."""
        return self._manager.resolve_counted(name, version).config

    def model_statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        answer = pb.ModelStatisticsResponse()
        for statistics in self.version_statistics(name, version):
            fill_statistics(answer.model_stats.add(), statistics)
        return answer

    def version_statistics(self, name: str = "", version: str = "") -> list[ModelStatistics]:
        """Return the statistics of the versions that take requests, of all models or only of a named model or version."""
        found = self._manager.index.statistics(ready=True)  # as in Triton, unloaded models have no statistics
        if not name:
            return found
        number, namespace = self._manager.resolve(name, version).statistics.key[1:]
        return [
            one
            for one in found
            if (one.model_name, one.namespace) == (name, namespace) and (not version or one.model_version == number)
        ]

    def unserved_requests(self) -> Mapping[str, int]:
        """Return model name -> number of requests that were refused because no version of the model served."""
        return self._manager.unserved

    def statistics(self, model: ModelIdentifier | None = None) -> list[ModelStatistics]:
        """Return the live statistics of versions that take requests or still have requests, of one model or all.
        The caller must not change them."""
        return self._manager.index.statistics(model)

    def all_statistics(self) -> list[ModelStatistics]:
        """Return the statistics of every version that is or was loaded, for the live feed."""
        return self._manager.index.all_statistics()

    def mismatches(self, name: str, after: int) -> list[Mismatch]:
        """Return the worst mismatches with ids above `after` that the shadow of a model's rollout keeps. Raises NOT_FOUND for
        an unknown model."""
        rollout = self._manager.rollout(name)
        return [] if rollout is None or rollout.mirror is None else rollout.mirror.mismatches.after(after)

    def forget_mismatches(self, name: str, until: float) -> None:
        """Forget the mismatches that the shadow of a model's rollout found up to the time `until` (in unix seconds). Raises
        NOT_FOUND for an unknown model."""
        rollout = self._manager.rollout(name)
        if rollout is not None and rollout.mirror is not None:
            rollout.mirror.mismatches.forget(until)

    def version_health(self) -> list[VersionHealth]:
        """Return whether each version that should serve is ready, and whether its last load failed."""
        return self._manager.index.health()

    def rollout(self, name: str) -> Rollout | None:
        """Return the rollout of a model, or None if it has no rollout. Raises NOT_FOUND for an unknown model."""
        return self._manager.rollout(name)

    async def refresh_memory(self) -> None:
        """Measure the memory of model processes again. Wait for the result, up to a timeout."""
        await self._manager.refresh_memory()

    async def memory_map(self) -> dict[str, object]:
        """Return the memory of each device and of the versions that hold it, as JSON (serving.models.memory_map)."""
        return await self._manager.memory_map()

    def custom_metrics(self) -> str:
        """Return the metrics that Python models define, as Prometheus text."""
        return self._manager.custom_metrics.render()

    @property
    def response_cache(self) -> ResponseCache | None:
        """The response cache that all models share, or None if there is no cache."""
        return self._manager.response_cache

    # -- inference -------------------------------------------------------------------------------------------------
    @property
    def tracing(self) -> bool:
        """Whether tracing is on, so that `infer` needs the times at which requests are received."""
        return self._trace_file.active or self._tracer is not None

    def infer(
        self,
        request: InFlightRequest,
        protocol: str = "",
        transport: asyncio.BaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        received: ReceiveTimes = None,
    ) -> None:
        """Check the request against its model and queue it. Raises if the request is wrong. Later errors go to the request's
        responder.
        protocol, transport, headers: the origin of a client's request, for the request log, traces and rollouts. Omit them if
        a model sends the request.
        received: see ReceiveTimes; given only if `tracing`."""
        if self._trace_file.active and protocol:
            safely("tracing a request", self._trace_file.observe, request, protocol, received)
        if self._observed and protocol:
            chooser = self._captures.choosers.get(request.asked.model_name)
            if chooser is not None and chooser.chooses():
                safely("capturing a request", chooser.observe, request)
            if self._followed:
                self._observe(request, protocol, transport, headers, received)
        try:
            if self._draining:
                raise unavailable(
                    "Server is stopping, scheduler for model has stopped accepting new inference requests"
                )
            if self._ledger is not None and self._ledger.active and protocol:
                self._ledger.admit(request, headers)
            self._manager.infer(request)
        except Exception as error:
            failure = unexpected(error, "taking a request")
            request.refuse(failure)
            try:
                raise failure from None
            finally:
                del failure  # it refers to this frame, and would keep the request until the cycle collector runs

    def _observe(
        self,
        request: InFlightRequest,
        protocol: str,
        transport: asyncio.BaseTransport | None,
        headers: Mapping[str, str] | None,
        received: ReceiveTimes,
    ) -> None:
        """Give the request to its observers: traces, the request log, samples, rollouts."""
        if self.request_log is not None:
            safely("logging a request", self.request_log.observe, request, protocol, transport)
        if self._tracer is not None:
            safely("tracing a request", self._tracer.observe, request, protocol, headers, received)
        if self._sampler.samplings:
            safely("sampling a request", self._sampler.observe, request)
        if headers and self.rollouts.headers:
            safely("noting the client of a request", self.rollouts.note_headers, request, headers)

    def _choose_observed(self) -> None:
        """Set `_observed` and `_followed` again."""
        self._followed = self._always_observed or bool(self._sampler.samplings or self.rollouts.headers)
        self._observed = self._followed or bool(self._captures.choosers)

    async def sample(self, name: str, version: str, count: int, seconds: float) -> Sampling:
        """Return the next `count` requests of a model with their answers, or fewer if `seconds` pass first. version: "" for all
        versions of the model."""
        model = self._manager.resolve(name, version)
        sampling = Sampling(name, model.spec.version if version else None, count)
        self._observed = self._followed = True
        try:
            await self._sampler.sample(sampling, seconds)
        finally:
            self._choose_observed()
        return sampling

    # -- repository ------------------------------------------------------------------------------------------------
    async def list_repositories(self, ready: bool = False) -> list[IndexRow]:
        """Return the repository index. If `ready`, it has only the ready versions; else all models, loaded or not."""
        index = self._manager.index
        return index.rows(ready, {} if ready else await asyncio.to_thread(index.on_disk))

    def known_models(self, ready: bool = False) -> list[IndexRow]:
        """Return the rows of the repository index for models that are or were loaded."""
        return self._manager.index.rows(ready, {})

    async def load_model(
        self,
        name: str,
        config: str = "",
        files: Mapping[str, bytes] | None = None,
        golden: Sequence[GoldenCheck] = (),
    ) -> LoadReport:
        """Load or reload a model, and return when it is ready. Raises LoadStopped if a step of the load fails.

        config: JSON that overrides config.pbtxt, as Triton's parameter `config`. files: the files that override the version
        folders ("file:1/model.onnx" -> content). golden: the requests that the new version must answer before it serves."""
        self._refuse_unless_explicit()
        return await self._manager.loader.load(name, config, files, golden)

    def break_off_load(self, name: str) -> None:
        """Fail the model's load, if it now waits for the model's process or for its golden requests."""
        self._refuse_unless_explicit()
        self._manager.loader.break_off(name)

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Unload a model. Return when the model takes no new requests; it may still have requests under way."""
        self._refuse_unless_explicit()
        await self._manager.loader.unload(name, unload_dependents)

    async def load_registered(self, name: str) -> None:
        """Load a model of the server's ModelSource, as `load_model` does."""
        self._refuse_while_stopping()
        await self._manager.loader.load(name)

    async def unload_registered(self, name: str) -> None:
        """Unload a model of the ModelSource, as `unload_model` does."""
        await self._manager.loader.unload(name)

    def break_off_registered(self, name: str) -> None:
        """Fail the load of a model of the ModelSource, as `break_off_load` does."""
        self._manager.loader.break_off(name)

    async def registered_drained(self, name: str) -> None:
        """Wait until the unloaded versions of a model have answered their requests and are freed."""
        await self._manager.drained(name)

    def forget_registered(self, name: str) -> None:
        """Forget a model that is unloaded and drained, so that the names of short-lived models do not accumulate."""
        self._manager.forget(name)

    def model_processes(self, name: str, version: str = "") -> list[ModelProcess]:
        """Return the child processes of a version's instances; none if the instances run in the server's process."""
        return self._manager.processes(name, version)

    def downtimes_s(self, name: str, version: str = "") -> list[float]:
        """Return how many seconds the process of each instance of a version has been down; 0 for a process that runs."""
        return self._manager.downtimes_s(name, version)

    def _refuse_while_stopping(self) -> None:
        if self._stopping:
            raise unavailable("the server is shutting down")

    def _refuse_unless_explicit(self) -> None:
        source = self.options.source
        if source is not None and source.refusal:
            raise unavailable(source.refusal)
        mode = self.options.model_control_mode
        if mode != "explicit":
            raise unavailable(
                "explicit model load / unload is not allowed if polling is enabled, nor where all is loaded at start: "
                f"expected model control mode 'explicit', this server has '{mode}'"
            )
        self._refuse_while_stopping()
