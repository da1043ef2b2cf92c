"""The facade that every frontend calls; protocol-neutral.

Answers are the protobuf messages of Triton's gRPC service, which the HTTP frontend renders as JSON. Everything here runs on
the event loop's thread and raises ServingError.
"""

from collections.abc import Mapping

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.options import Options
from serving.request import InferenceRequest
from serving.statistics import ModelStatistics

EXTENSIONS = (
    "binary_tensor_data",
    "parameters",
    "statistics",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    "schedule_policy",
)


class InferenceServer:
    """One server: its repository manager, its state, its models."""

    def __init__(self, options: Options) -> None:
        self.options = options

    # -- life ------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Load what the control mode asks for. With --exit-on-error, a model that fails raises ServingError."""
        raise NotImplementedError

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests (UNAVAILABLE), finish those under way, unload every model; give up at the timeout."""
        raise NotImplementedError

    # -- health ----------------------------------------------------------------------------------------------------
    def live(self) -> bool:
        raise NotImplementedError

    def ready(self) -> bool:
        """Live, start-up done, not draining; with --strict-readiness also every model that should be loaded is."""
        raise NotImplementedError

    def model_ready(self, name: str, version: str = "") -> bool:
        """False for a known model that is not ready; NOT_FOUND for an unknown one, INVALID_ARG for a malformed version."""
        raise NotImplementedError

    # -- description -----------------------------------------------------------------------------------------------
    def metadata(self) -> pb.ServerMetadataResponse:
        raise NotImplementedError

    def model_metadata(self, name: str, version: str = "") -> pb.ModelMetadataResponse:
        raise NotImplementedError

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        raise NotImplementedError

    def model_statistics(self, name: str = "", version: str = "") -> pb.ModelStatisticsResponse:
        raise NotImplementedError

    def statistics(self) -> list[ModelStatistics]:
        """The live objects, for the metrics frontend: every version that is or was loaded. Read, never write."""
        raise NotImplementedError

    # -- inference -------------------------------------------------------------------------------------------------
    def infer(self, request: InferenceRequest) -> None:
        """Check the request against the model and queue it. Raises at once what is wrong with it; whatever happens later
        goes through `request.on_response`. Never both."""
        raise NotImplementedError

    # -- repository ------------------------------------------------------------------------------------------------
    def repository_index(self, ready: bool = False) -> pb.RepositoryIndexResponse:
        raise NotImplementedError

    async def load_model(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
        """Load or reload; returns when the model is ready. `config` overrides config.pbtxt (JSON, as Triton's `config`
        parameter); `files` overrides the version folders ("file:1/model.onnx" -> content). Idempotent."""
        raise NotImplementedError

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None:
        """Returns when unloading has begun to drain; the model takes no new requests from here on."""
        raise NotImplementedError
