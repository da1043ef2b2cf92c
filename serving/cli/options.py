"""The options of a server: the values of its command line, validated once into a frozen object."""

from dataclasses import dataclass
from pathlib import Path

from repository.remote.address import RemoteAddress
from serving.cli.option_values import HALF, NONE, Cap, HostPolicySetting, Restriction, boolean, quantile
from serving.cli.trace_config import TraceSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The source of models that a plugin's flags require. `source` and `frontends` are import paths, "module:name".

    source: the class of the source, a serving.server.model_source.ModelSource.
    frontends: a function of (source, options) that returns a dict of names and serving.frontends.frontend.Listening.
    settings: the values of the plugin's flags; only the plugin reads them.
    refusal: the error for clients that load models over V2, if the server has only the models of the source; "" if it also
    has the models of --model-repository.
    hidden_variables: a regular expression. Models do not see the environment variables whose names match; "" hides none.
    """

    source: str
    frontends: str
    settings: object
    refusal: str = ""
    hidden_variables: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The field names are the names of the flags, with underscores; `serving.cli.command_line` describes each flag."""

    model_repository: tuple[Path | RemoteAddress, ...]
    model_name: str = ""
    repository_cache_folder: Path | None = None
    repository_cache_bytes: int = 50 << 30
    server_id: str = "slipway"
    model_control_mode: str = "none"
    model_namespacing: bool = False
    load_model: tuple[str, ...] = ()
    repository_poll_secs: float = 15.0
    max_unloads_per_poll: Cap = HALF
    model_signature_key: tuple[Path, ...] = ()
    disable_auto_complete_config: bool = False
    strict_readiness: bool = True
    ready_despite_new_models: bool = False
    ready_despite_failed_models: Cap = NONE
    strict_devices: bool = False
    model_environment: str = "all"
    exit_on_error: bool = True
    wanted_models_file: Path | None = None
    traffic_remotes: Path | None = None
    exit_timeout_secs: float = 30.0
    behind_load_balancer: bool = False
    drain_secs: float | None = None
    process_heartbeat_timeout_secs: float = 60.0
    model_config_name: str | None = None
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_load_gpu_limit: tuple[tuple[int, float], ...] = ()
    backend_config: tuple[tuple[str, str, str], ...] = ()
    cache_config: tuple[tuple[str, str, str], ...] = ()
    host_policy: tuple[HostPolicySetting, ...] = ()
    check_memory: bool = True
    memory_budget: int = 0
    gpu_memory_budget: int = 0
    request_memory_limit: int = 0
    request_stall_secs: float = 30.0
    request_min_rate: int = 1024
    grpc_stream_idle_secs: float = 3600.0
    rate_limit: str = "off"
    rate_limit_resource: tuple[tuple[str, int, int | None], ...] = ()
    frontend_workers: int = 0
    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 << 20
    http_max_connection_age: int = 0
    http_restricted_api: tuple[Restriction, ...] = ()
    http_header_forward_pattern: str = ""
    http_use_ssl: bool = False
    http_use_ssl_mutual: bool = False
    http_server_cert: Path | None = None
    http_server_key: Path | None = None
    http_root_cert: Path | None = None
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: int = 8001
    reuse_grpc_port: bool = False
    grpc_max_message_size: int = (1 << 31) - 1
    grpc_restricted_protocol: tuple[Restriction, ...] = ()
    grpc_header_forward_pattern: str = ""
    grpc_use_ssl: bool = False
    grpc_use_ssl_mutual: bool = False
    grpc_server_cert: Path | None = None
    grpc_server_key: Path | None = None
    grpc_root_cert: Path | None = None
    grpc_infer_response_compression_level: str = "none"
    grpc_keepalive_time: int = 7_200_000
    grpc_keepalive_timeout: int = 20_000
    grpc_keepalive_permit_without_calls: bool = False
    grpc_http2_max_pings_without_data: int = 2
    grpc_http2_min_recv_ping_interval_without_data: int = 300_000
    grpc_http2_max_ping_strikes: int = 2
    grpc_max_connection_age: int = 0
    grpc_max_connection_age_grace: int = 0
    allow_client_shm: bool = False
    allow_metrics: bool = True
    metrics_address: str = ""
    metrics_port: int = 8002
    metrics_config: tuple[tuple[str, str], ...] = ()
    metrics_interval_ms: int = 2000
    metrics_level: str = "full"
    metrics_buckets_per_doubling: int | None = None
    allow_cpu_metrics: bool = True
    allow_gpu_metrics: bool = True
    auth_file: Path | None = None
    usage_log: Path | None = None
    address_file: Path | None = None
    traffic_state: Path | None = None
    capture_folder: Path | None = None
    trace_config: tuple[TraceSetting, ...] = ()
    request_log: str = ""
    request_log_sample: float = 1.0
    request_log_client: str = "off"
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: str = "default"
    log_file: Path | None = None
    log_file_max_bytes: int = 0
    log_console: bool = False
    source: SourceOptions | None = None

    def metric_enabled(self, group: str) -> bool:
        """Return whether --metrics-config enables a group of latency metrics. By default only the counters are enabled."""
        return boolean(dict(self.metrics_config).get(group, str(group == "counter_latencies")))

    @property
    def lean_metrics(self) -> bool:
        return self.metrics_level == "lean"

    @property
    def buckets_per_doubling(self) -> int:
        """The latency buckets for each doubling: 10, or 1 with the lean level, unless the flag says more."""
        given = self.metrics_buckets_per_doubling
        return given if given is not None else 1 if self.lean_metrics else 10

    @property
    def histogram_latencies(self) -> bool | None:
        """Whether models have a histogram of the time to the first response, or None if --metrics-config does not set it."""
        text = dict(self.metrics_config).get("histogram_latencies")
        return None if text is None else boolean(text)

    @property
    def summary_quantiles(self) -> list[float]:
        """The quantiles of the latency summaries."""
        text = dict(self.metrics_config).get("summary_quantiles", "0.5,0.9,0.95,0.99,0.999")
        return [quantile(one) for one in text.split(",")]

    @property
    def cache_size(self) -> int:
        """The size of the response cache in bytes; 0 if there is no cache."""
        return next((int(value) for _, setting, value in self.cache_config if setting == "size"), 0)
