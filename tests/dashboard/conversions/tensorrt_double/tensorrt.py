"""A double of TensorRT for machines without a GPU: its plan is JSON that says what the builder was told.

TENSORRT_DOUBLE names what goes wrong: "no GPU", "operator" (the parser refuses one), or "memory" (nothing can be built).
"""

import json
import os
from enum import Enum, IntEnum
from typing import Any

__version__ = "11.0.0"
_FAILS = os.environ.get("TENSORRT_DOUBLE", "")


class ILogger:
    class Severity(Enum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class NetworkDefinitionCreationFlag(IntEnum):
    STRONGLY_TYPED = 1


class BuilderFlag(Enum):
    TF32 = 7


class MemoryPoolType(Enum):
    WORKSPACE = 0


class Network:
    def __init__(self, flags: int) -> None:
        self.flags, self.model = flags, ""


class Profile(dict[str, list[tuple[int, ...]]]):
    def set_shape(self, name: str, *shapes: tuple[int, ...]) -> None:
        self[name] = list(shapes)


class BuilderConfig:
    def __init__(self) -> None:
        self.told: dict[str, Any] = {"tf32": True, "profiles": []}

    def clear_flag(self, flag: BuilderFlag) -> None:
        self.told["tf32"] = False

    def set_memory_pool_limit(self, pool: MemoryPoolType, size: int) -> None:
        self.told[pool.name] = size

    def add_optimization_profile(self, profile: Profile) -> int:
        self.told["profiles"].append(profile)
        return 0


class Builder:
    def __init__(self, logger: ILogger) -> None:
        self._logger = logger
        if _FAILS == "no GPU":
            logger.log(ILogger.Severity.ERROR, "CUDA initialization failure with error: 100")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    def create_network(self, flags: int) -> Network:
        return Network(flags)

    def create_builder_config(self) -> BuilderConfig:
        return BuilderConfig()

    def create_optimization_profile(self) -> Profile:
        return Profile()

    def build_serialized_network(self, network: Network, config: BuilderConfig) -> bytes | None:
        if _FAILS == "memory":
            self._logger.log(ILogger.Severity.ERROR, "Could not find any implementation for node MatMul")
            return None
        return json.dumps({"flags": network.flags, "model": network.model, **config.told}).encode()


class OnnxParser:
    def __init__(self, network: Network, logger: ILogger) -> None:
        self._network = network
        self.num_errors = int(_FAILS == "operator")

    def parse_from_file(self, path: str) -> bool:
        self._network.model = path
        return not self.num_errors

    def get_error(self, index: int) -> Any:
        class Error:
            def desc(self) -> str:
                return "No importer registered for op: Own"

        return Error()
