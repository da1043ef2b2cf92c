"""`slipway.isolation: process`: runs the instances of any backend in child processes.

A crash or a leak ends with the process, and unloading returns all memory. Each instance reads its own weights. Schedulers see
no difference.
"""

from base64 import b64encode
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import KINDS
from repository.config.model_config import get_parameter
from repository.config.own_parameters import ISOLATION
from serving.backends.base.backend import Backend, BackendInstance, ModelSpec
from serving.backends.channel.messages import InitializeBackend
from serving.backends.child.instance import ChildInstance
from serving.backends.environments.interpreter import Interpreter, model_interpreter
from serving.core.devices import Device
from serving.core.errors import unsupported

STUB = "serving.child_program.backend_stub:BackendStub"


def wants_process(config: ModelConfig) -> bool:
    return bool(get_parameter(config, ISOLATION) == "process")


def isolate(inner: type[Backend], spec: ModelSpec) -> Backend:
    """Return the backend `inner` for this model, with its instances in child processes."""

    class Isolated(IsolatedBackend):
        @classmethod
        def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
            inner.complete_config(config, version_dir)

        @classmethod
        def gpu_available(cls) -> tuple[bool, str]:
            return inner.gpu_available()

        @property
        def python(self) -> Interpreter:
            config = self.spec.config
            own = KINDS[config.backend].own_process
            return model_interpreter(config, self.spec.version_dir.parent) if own else Interpreter()

    return Isolated(spec)


class IsolatedBackend(Backend):
    """A backend whose instances run another backend in child processes."""

    @property
    def python(self) -> Interpreter:
        return Interpreter()

    def load(self) -> None:
        if self.spec.config.model_transaction_policy.decoupled:
            raise unsupported("a decoupled model cannot run with slipway.isolation 'process' yet")

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        spec = self.spec
        initialize: InitializeBackend = {
            "op": "initialize",
            "stub": STUB,
            "folder": str(spec.version_dir),
            "model_file": str(spec.model_file),
            "config": b64encode(spec.config.SerializeToString()).decode(),
            "version": spec.version,
            "strict_devices": spec.strict_devices,
            "device": (device.kind, device.id),
            "name": name,
        }
        return ChildInstance(spec, device, name, initialize, self.python)
