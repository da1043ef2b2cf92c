"""Describes models for TorchServe's APIs: the list, and each version with its workers and its queue.

Models of a repository with config.pbtxt, which are not registered, are described from their configurations.
"""

import datetime
import os
from collections.abc import Iterable
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository.torchserve import parameters as words
from repository.torchserve.model_archive import ModelSettings
from repository.torchserve.options import TorchServeOptions
from serving.core.devices import gpu_count
from serving.core.errors import ServingError
from serving.models.model_repository_manager import ModelProcess
from serving.server.inference_server import InferenceServer
from serving.torchserve.backend.settings import DEFAULT_TIMEOUT_S
from serving.torchserve.registry import version_names
from serving.torchserve.registry.errors import model_not_found, version_not_found
from serving.torchserve.registry.registrations import Registration, Registrations

PAGE = 100  # the most models on one page of a list
FIRST_WORKER = 9000

Description = dict[str, Any]


class Descriptions:
    """Describes the models of one server. Runs on the event loop's thread."""

    def __init__(
        self, server: InferenceServer, options: TorchServeOptions, registrations: Registrations | None
    ) -> None:
        self._server = server
        self._options = options
        self._registrations = registrations
        self._workers: dict[int, int] = {}  # process -> the number of its worker

    # -- the list --------------------------------------------------------------------------------------------------
    def page(self, limit: int, first: int) -> Description:
        """Return a page of the list of models, sorted by name. Each model has the url of its default version."""
        token, rows = page_of(sorted(self._names_and_urls()), limit, first)
        return {**token, "models": [{"modelName": name, "modelUrl": url} for name, url in rows]}

    def _names_and_urls(self) -> Iterable[tuple[str, str]]:
        if self._registrations is not None:
            defaults = [model.default_version for model in self._registrations.models.values()]
            return [(one.name, one.url) for one in defaults if one.url]  # functions of a workflow have no url
        return {row.name: (row.name, _url(row.name)) for row in self._server.known_models(ready=True)}.values()

    # -- one model -------------------------------------------------------------------------------------------------
    def describe(self, name: str, version: str | None) -> list[Description]:
        """Return the description of a version (None: the default one), or of "all". Raises TorchServeError if there is none."""
        if self._registrations is not None:
            if version == "all":
                if name not in self._registrations.models:
                    raise model_not_found(name)
                return [self._registered(one) for one in self._registrations.models[name].versions.values()]
            return [self._registered(self._registrations.find(name, version))]
        if version == "all":
            numbers = [str(number) for number in self._ready(name)]
        else:
            numbers = [version_names.resolve(self._server, name, version)]
        return [self._from_repository(name, number) for number in numbers]

    def number(self, name: str, version: str | None) -> str | None:
        """Return the number of a version in the repository, or None if the version has no workers."""
        if self._registrations is not None:
            found = self._registrations.find(name, version)
            return str(found.number) if found.serving else None
        return str(self._server.resolved_version(name, version_names.resolve(self._server, name, version)))

    def _ready(self, name: str) -> list[int]:
        try:
            return self._server.ready_versions(name)
        except ServingError:
            raise model_not_found(name) from None

    def _registered(self, one: Registration) -> Description:
        number = str(one.number) if one.serving else None
        settings = one.settings
        return self._described(
            one.name,
            one.version,
            one.url,
            settings.runtime,
            (one.min_workers, one.max_workers),
            (settings.batch_size, settings.max_batch_delay_ms, settings.response_timeout_s, settings.startup_timeout_s),
            one.archive_settings,
            self._registrations is not None and self._registrations.models[one.name].at_startup,
            number,
            settings.job_queue_size,
            one.workers,
        )

    def _from_repository(self, name: str, number: str) -> Description:
        try:
            config = self._server.model_config(name, number)
            resolved = self._server.resolved_version(name, number)
        except ServingError:
            if self._server.knows_model(name):
                raise version_not_found(name, number) from None
            raise model_not_found(name) from None
        workers = max(1, sum(_instances(group) for group in config.instance_group))
        batching = config.dynamic_batching
        return self._described(
            name,
            version_names.names_of(config, resolved)[0],
            _url(name),
            "python",
            (workers, workers),
            (
                max(1, config.max_batch_size),
                batching.max_queue_delay_microseconds // 1000,
                _number(config, words.RESPONSE_TIMEOUT, DEFAULT_TIMEOUT_S),
                _number(config, words.STARTUP_TIMEOUT, DEFAULT_TIMEOUT_S),
            ),
            ModelSettings(),
            True,
            str(resolved),
            batching.default_queue_policy.max_queue_size,
        )

    def _described(
        self,
        name: str,
        version: str,
        url: str,
        runtime: str,
        workers: tuple[int, int],
        numbers: tuple[int, int, int, int],
        archive_settings: ModelSettings,
        at_startup: bool,
        number: str | None,
        queue_size: int,
        wanted: int = 0,
    ) -> Description:
        """number: the number of the version in the repository, or None without workers. wanted: how many workers the version
        should have, including workers that are being started."""
        processes, pending = self._live(name, number)
        on_gpu = archive_settings.device_type != "cpu" and gpu_count() > 0
        ids = list(archive_settings.device_ids)
        devices = {"deviceIds": ids} if ids and max(ids) < gpu_count() else {}
        whole = archive_settings.whole
        return {
            "modelName": name,
            "modelVersion": version,
            **({"modelUrl": url} if url else {}),
            "runtime": runtime,
            "minWorkers": workers[0],
            "maxWorkers": workers[1],
            "batchSize": numbers[0],
            "maxBatchDelay": numbers[1],
            "responseTimeout": numbers[2],
            "startupTimeout": numbers[3],
            "maxRetryTimeoutInSec": _setting(whole.get("maxRetryTimeoutInSec"), 300),
            "clientTimeoutInMills": _setting(whole.get("clientTimeoutInMills"), 0),
            "parallelType": archive_settings.parallel_type,
            "parallelLevel": _setting(whole.get("parallelLevel"), 0) if archive_settings.parallel_type else 0,
            "deviceType": "gpu" if on_gpu else "cpu",
            **devices,
            "continuousBatching": whole.get("continuousBatching") is True,
            "useJobTicket": whole.get("useJobTicket") is True,
            "useVenv": whole.get("useVenv") is True,
            "stateful": whole.get("sequenceBatching") is True,
            "sequenceMaxIdleMSec": _setting(whole.get("sequenceMaxIdleMSec"), 0),
            "sequenceTimeoutMSec": _setting(whole.get("sequenceTimeoutMSec"), 0),
            "maxNumSequence": _setting(whole.get("maxNumSequence"), 0),
            "maxSequenceJobQueueSize": _setting(whole.get("maxSequenceJobQueueSize"), 0),
            "loadedAtStartup": at_startup,
            "workers": [
                *(self._worker(one) for one in processes),
                *(self._coming_worker(later) for later in range(wanted - len(processes))),
            ],
            "jobQueueStatus": {"remainingCapacity": max(0, queue_size - pending), "pendingRequests": pending},
        }

    def _live(self, name: str, number: str | None) -> tuple[list[ModelProcess], int]:
        """Return the processes of a version, and how many requests wait for them."""
        if number is None:
            return [], 0
        try:
            processes = self._server.model_processes(name, number)
            status = self._server.version_statistics(name, number)[0].status
        except (ServingError, IndexError):  # the version is being replaced
            return [], 0
        return processes, status.pending if status is not None else 0

    def _worker(self, process: ModelProcess) -> Description:
        if len(self._workers) > 10_000:
            self._workers.clear()
        number = self._workers.setdefault(process.pid, FIRST_WORKER + len(self._workers))
        on_gpu = process.device.kind == "gpu"
        return {
            "id": str(number),
            "startTime": _started(process.pid),
            "status": "READY" if process.ready else "UNLOADING",
            "memoryUsage": process.memory,
            "pid": process.pid,
            "gpu": on_gpu,
            "gpuUsage": f"gpuId::{process.device.id}" if on_gpu else "N/A",
        }

    def _coming_worker(self, later: int) -> Description:
        """Return the row of a worker that has no process yet. Clients poll the first row until it is READY."""
        return {
            "id": str(FIRST_WORKER + len(self._workers) + later),
            "startTime": _time(datetime.datetime.now(datetime.UTC)),
            "status": "UNLOADING",
            "memoryUsage": 0,
            "pid": -1,
            "gpu": False,
            "gpuUsage": "N/A",
        }


def page_of(rows: list[tuple[str, str]], limit: int, first: int) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the token of the next page, and the rows of this one. The token is absent on the last page."""
    first = max(0, first)
    last = first + (limit if 0 <= limit <= PAGE else PAGE)
    return {"nextPageToken": str(last)} if last <= len(rows) else {}, rows[first:last]


def _url(name: str) -> str:
    """Return the name of an archive for a model that was not registered from an archive."""
    return f"{name}.mar"


def _instances(group: ModelInstanceGroup) -> int:
    devices = len(group.gpus) or max(1, gpu_count()) if group.kind == ModelInstanceGroup.KIND_GPU else 1
    return max(1, int(group.count)) * devices


def _number(config: ModelConfig, key: str, default: int) -> int:
    text = str(config.parameters[key].string_value) if key in config.parameters else ""
    return int(text) if text.isdigit() else default


def _setting(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _started(pid: int) -> str:
    """Return when a process was started, in UTC."""
    try:
        seconds = os.stat(f"/proc/{pid}").st_ctime
    except OSError:
        seconds = 0.0
    return _time(datetime.datetime.fromtimestamp(seconds, datetime.UTC))


def _time(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
