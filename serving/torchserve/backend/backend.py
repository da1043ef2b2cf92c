"""The backend `torchserve`: an archive unpacked into a private folder, and a process with its handler for each instance.

The code of the child process is in serving/torchserve/handlers. The package `ts`, which handlers import, is in
serving/torchserve/ts-path.
"""

import logging
from pathlib import Path
from typing import ClassVar

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.errors import RepositoryError
from repository.torchserve import model_archive
from repository.torchserve import parameters as words
from repository.torchserve.model_archive import MANIFEST
from serving.backends.base.backend import Backend, BackendInstance, ModelSpec, Review
from serving.backends.base.parameters import Parameters
from serving.backends.child.instance import ChildInstance
from serving.backends.environments.interpreter import model_interpreter
from serving.backends.environments.requirements import install
from serving.core.datatypes import BY_CONFIG
from serving.core.devices import Device, gpu_count
from serving.core.errors import not_found
from serving.resources.private_folder import PrivateFolder
from serving.torchserve.backend import settings
from serving.torchserve.backend.archive_report import ArchiveReport
from serving.torchserve.backend.settings import archive_path, as_serving_error, bounds
from serving.torchserve.handlers.messages import InitializeTorchserve

log = logging.getLogger(__name__)

_UNPACKED = "slipway-archive-"


class TorchserveBackend(Backend):
    """The instances share only the unpacked archive, which is the working directory of every handler."""

    runs_user_code: ClassVar[bool] = True

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._private: PrivateFolder | None = None

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Fill in the archive's batching, workers and timeouts. Unless declared, the input and the output are named `data`."""
        settings.complete(config, archive_path(version_dir, config.default_model_filename))

    @classmethod
    def review(cls, model_file: Path) -> Review:
        return ArchiveReport(archive_path(model_file.parent, model_file.name)).review()

    def load(self) -> None:
        archive = archive_path(self.spec.version_dir, self.spec.model_file.name)
        if not archive.exists():
            raise not_found(f"the version folder of model '{self.spec.name}' has no '{archive.name}'")
        self._parameters = Parameters.of(self.spec.config)
        self._parameters.warn_of_unknown(words.KNOWN)
        self._private = PrivateFolder(None, _UNPACKED)
        try:
            self._manifest, self._settings = model_archive.read_description(archive)
            self._folder = self._private.path / "model"
            model_archive.unpack(archive, self._folder)
            self._python = model_interpreter(self.spec.config, self.spec.version_dir.parent)
            self._packages = self._installed()
        except RepositoryError as error:
            self.unload()
            raise as_serving_error(error) from None
        except BaseException:
            self.unload()
            raise
        if self._settings.unserved:
            log.warning(
                "%s: model-config.yaml sets keys without an effect here: %s",
                self.spec.name,
                ", ".join(self._settings.unserved),
            )

    def _installed(self) -> str:
        """Install the archive's requirements if the configuration requests it. Return their folder, or "" if there is none."""
        assert self._private is not None
        wanted = self._parameters.boolean(words.INSTALL, False)
        if not wanted or not self._manifest.requirements_file:
            return ""
        packages = self._private.path / "packages"
        archive = (self._folder / MANIFEST).resolve().parents[1]  # its files may be links to a folder of the store
        install(archive / self._manifest.requirements_file, archive, packages, self._python)
        return str(packages)

    def unload(self) -> None:
        if self._private is not None:
            self._private.close()
            self._private = None

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        config, manifest, parameters = self.spec.config, self._manifest, self._parameters
        initialize: InitializeTorchserve = {
            "op": "initialize",
            "stub": "serving.torchserve.handlers.stub:TorchserveStub",
            "folder": str(self._folder),
            "model_file": manifest.model_file,
            "packages": self._packages,
            "decoupled": config.model_transaction_policy.decoupled,
            "name": self.spec.name,
            "handler": parameters.values.get(words.HANDLER, "") or manifest.handler,
            "envelope": parameters.values.get(words.ENVELOPE, "") or manifest.envelope,
            "manifest": dict(manifest.whole),
            "settings": dict(self._settings.whole),
            "settings_file": manifest.config_file,
            "batch_size": max(1, config.max_batch_size),
            "gpu": device.id if device.kind == "gpu" else None,
            "limit_max_image_pixels": parameters.boolean(words.LIMIT_IMAGES, True),
            "metrics": words.METRICS_MODE
            in parameters.values,  # true if TorchServe's listeners show the metrics of handlers
            "metrics_config": parameters.values.get(words.METRICS_CONFIG, ""),
            "metrics_auto_detect": parameters.boolean(words.METRICS_AUTO_DETECT, False),
            "inputs": None if _is_data(config.input) else [tensor.name for tensor in config.input],
            "as_parts": parameters.boolean(words.PARTS, False),
            "outputs": None if _is_data(config.output) else [(one.name, _datatype(one)) for one in config.output],
            "batched": config.max_batch_size > 0,
        }
        return ChildInstance(self.spec, device, name, initialize, self._python, bounds(parameters))

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        return (True, "") if gpu_count() else (False, "this machine shows no NVIDIA GPU")


def _is_data(tensors: "list[mc.ModelInput] | list[mc.ModelOutput]") -> bool:
    """Return whether the only tensor is `data`, which `complete_config` adds."""
    return len(tensors) == 1 and tensors[0].name == settings.DATA and tensors[0].data_type == mc.TYPE_STRING


def _datatype(tensor: mc.ModelOutput) -> str:
    return BY_CONFIG[tensor.data_type].name
