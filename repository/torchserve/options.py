"""The options of TorchServe's APIs: the values of config.properties and TorchServe's flags, validated, in a frozen object.

Source: docs/configuration.md of TorchServe 0.12.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# model -> version of the archive, such as "1.0" -> its settings in `models={...}`
ModelsSettings = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address of an API: a host and port, or the path of a Unix socket."""

    host: str = "127.0.0.1"
    port: int = 0
    tls: bool = False
    socket: Path | None = None

    def __str__(self) -> str:
        """Return the address in the form of config.properties."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchServeOptions:
    """The fields have the names of the properties, with a unit added if the name has none."""

    # -- listeners -------------------------------------------------------------------------------------------------
    inference_address: ListenAddress = ListenAddress(port=8080)
    management_address: ListenAddress = ListenAddress(port=8081)
    metrics_address: ListenAddress = ListenAddress(port=8082)
    grpc_inference_address: str = "127.0.0.1"
    grpc_inference_port: int = 7070
    grpc_inference_max_connection_age_ms: int = 0  # 0: never
    grpc_inference_max_connection_age_grace_ms: int = 0
    grpc_management_address: str = "127.0.0.1"
    grpc_management_port: int = 7071
    grpc_management_max_connection_age_ms: int = 0
    grpc_management_max_connection_age_grace_ms: int = 0
    certificate_file: Path | None = None
    private_key_file: Path | None = None
    enable_grpc_ssl: bool = False
    open_inference_protocol: bool = True
    cors_allowed_origin: str = ""  # "": no CORS
    cors_allowed_methods: str = ""
    cors_allowed_headers: str = ""
    max_request_size: int = 6553500  # bytes
    max_response_size: int = 6553500

    # -- models ----------------------------------------------------------------------------------------------------
    model_store: Path | None = None
    workflow_store: Path | None = None
    managed: bool = False  # whether TorchServe's APIs register the models; False if --model-repository gives the models
    load_models: tuple[str, ...] = ()  # "all", or each [name=]archive; also from the flag --models
    models: ModelsSettings = field(default_factory=dict)
    model_snapshot: ModelsSettings | None = None  # the models of a snapshot, which are loaded instead of load_models
    snapshot_workflows: tuple[tuple[str, str], ...] = ()  # name and archive of each workflow of a snapshot
    allowed_urls: tuple[str, ...] = ("file://.*", "http(s)?://.*")  # regular expressions for whole addresses
    default_workers_per_model: int = 0  # 0: one worker for each GPU, or for each core if there is no GPU
    default_response_timeout_s: float = 120.0
    default_startup_timeout_s: float = 120.0
    unregister_model_timeout_s: float = 120.0
    job_queue_size: int = 100
    batch_size: int = 1
    max_batch_delay_ms: int = 100
    number_of_gpu: int | None = None  # None: all GPUs
    install_py_dep_per_model: bool = False
    default_service_handler: str = ""
    service_envelope: str = ""
    decode_input_request: bool = True
    limit_max_image_pixels: bool = True
    blacklist_env_vars: str = ""  # a regular expression for environment variables that handlers do not see
    header_key_sequence_id: str = "ts_request_sequence_id"
    header_key_sequence_start: str = "ts_request_sequence_start"
    header_key_sequence_end: str = "ts_request_sequence_end"

    # -- access ----------------------------------------------------------------------------------------------------
    enable_model_api: bool = False
    token_auth: bool = True
    token_expiration_min: float = 60.0

    # -- metrics ---------------------------------------------------------------------------------------------------
    enable_metrics_api: bool = True
    metrics_mode: str = "log"  # or "prometheus", "legacy"
    metrics_config: Path | None = None
    model_metrics_auto_detect: bool = False
    disable_system_metrics: bool = False
    metric_time_interval_s: int = 60

    # -- files -----------------------------------------------------------------------------------------------------
    config_snapshots: bool = True
    log_files: bool = False  # access_log.log and model_log.log
    log_location: Path = Path("logs")
    metrics_location: Path = Path("logs")
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)  # the read values, for snapshots
