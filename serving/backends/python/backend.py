"""The Python backend: Triton's TritonPythonModel, with each instance in a separate process.

Source of the API: the README of triton-inference-server/python_backend. The child's part is in serving/child_program/.
"""

import ast
import json
from pathlib import Path
from typing import ClassVar

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from repository.core.python_source import syntax_tree
from serving.backends.base.backend import Backend, BackendInstance
from serving.backends.channel.messages import InitializePython
from serving.backends.child.completion import complete_in_child
from serving.backends.child.instance import ChildInstance
from serving.backends.environments.interpreter import model_interpreter
from serving.core.devices import Device, gpu_count
from serving.core.errors import invalid, not_found
from serving.core.message_json import message_to_json

STUB = "serving.child_program.python_stub:PythonStub"
# Inputs are on the host even with "no", because models with "no" must accept tensors on the host and on a GPU.
_ON_HOST = "FORCE_CPU_ONLY_INPUT_TENSORS"


class PythonBackend(Backend):
    """Instances share nothing: each child imports and initializes the model separately."""

    runs_user_code: ClassVar[bool] = True

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Run the model's `auto_complete_config` in a process. Without instance groups, add one instance on the CPU."""
        path = version_dir / config.default_model_filename
        if _completes_itself(path):
            completed = _run_complete_config(config, path)
            if completed is not None:
                config.CopyFrom(_parsed(completed, config))
        if not config.instance_group:
            config.instance_group.add(name=config.name, kind=ModelInstanceGroup.KIND_CPU, count=1)

    def load(self) -> None:
        if not self.spec.model_file.is_file():
            raise not_found(f"the version folder of model '{self.spec.name}' has no '{self.spec.model_file.name}'")
        parameters = self.spec.config.parameters
        forced = parameters[_ON_HOST].string_value if _ON_HOST in parameters else "yes"
        if forced not in ("yes", "no"):
            raise invalid(f"{_ON_HOST} must be 'yes' or 'no', not '{forced[:40]}'")

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        config = self.spec.config
        initialize: InitializePython = {
            "op": "initialize",
            "stub": STUB,
            "folder": str(self.spec.version_dir),
            "model_file": str(self.spec.model_file),
            "decoupled": config.model_transaction_policy.decoupled,
            "outputs": [output.name for output in config.output],
            "args": {
                "model_config": json.dumps(message_to_json(config)),
                "model_instance_kind": device.kind.upper(),
                "model_instance_name": name,
                "model_instance_device_id": str(device.id),
                "model_repository": str(self.spec.version_dir.parent),
                "model_version": str(self.spec.version),
                "model_name": self.spec.name,
            },
        }
        return ChildInstance(
            self.spec, device, name, initialize, model_interpreter(config, self.spec.version_dir.parent)
        )

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        return (True, "") if gpu_count() else (False, "this machine shows no NVIDIA GPU")


def _completes_itself(model_file: Path) -> bool:
    """Return whether the model may have `auto_complete_config`. Most models have none, and a process that runs it takes 0.2 s
    and the time of the model's imports. A model has none if its class is in the model's file and inherits nothing, and no
    source file contains the method's name."""
    try:
        source = model_file.read_bytes()
        if any(b"auto_complete_config" in path.read_bytes() for path in model_file.parent.rglob("*.py")):
            return True
        classes = [node for node in syntax_tree(source).body if isinstance(node, ast.ClassDef)]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return True  # running `auto_complete_config` reports the error
    own = [one for one in classes if one.name == "TritonPythonModel"]
    return not own or any(one.bases or one.keywords or one.decorator_list for one in own)


def _run_complete_config(config: ModelConfig, path: Path) -> dict[str, object] | None:
    """Return the configuration of `auto_complete_config`, as JSON, or None if the model lacks that method."""
    work = "auto_complete_config"
    given = json.dumps(message_to_json(config))
    python = model_interpreter(config, path.parent.parent)
    answer = complete_in_child(config.name, python, STUB, path, given, f"in {work}", work)
    if answer.get("op") != "completed":
        raise invalid(str(answer.get("message")))
    completed = answer.get("config")
    return completed if isinstance(completed, dict) else None


def _parsed(completed: dict[str, object], given: ModelConfig) -> ModelConfig:
    try:
        config = json_format.ParseDict(completed, ModelConfig(), max_recursion_depth=50)
    except json_format.ParseError as error:
        raise invalid(f"auto_complete_config made a configuration that is not valid: {error}") from None
    if (config.name, config.backend) != (given.name, given.backend):
        raise invalid("auto_complete_config must not change the model's name or backend")
    return config
