"""The command line: tritonserver's flag names, validated once into a frozen object."""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repository.remote.address import RemoteAddress
from serving.cli.foreign_flags import add_foreign_flags
from serving.cli.option_values import (
    HostPolicySetting,
    Parser,
    Restriction,
    address,
    at_least_one,
    backend_setting,
    boolean,
    cache_setting,
    cache_size,
    config_name,
    count,
    fraction,
    gpu_limit,
    heartbeat_timeout,
    host_policy,
    lowered,
    metrics_setting,
    number,
    pattern,
    repository,
    resource,
    restricted_twice,
    restriction,
    seconds,
    verbosity,
    whole,
)
from serving.cli.trace_config import DEPRECATED_TRACE_FLAGS, TraceSetting, trace_setting, trace_setting_of

MODES = ("none", "poll", "explicit")
# What tritonserver 2.51 does not have: nothing that is short for one of its flags means one of these.
OWN_FLAGS = frozenset(
    (
        "--address-file",
        "--allow-client-shm",
        "--auth-file",
        "--gpu-memory-budget",
        "--grpc-infer-thread-count",
        "--grpc-max-message-size",
        "--grpc-max-response-pool-size",
        "--http-max-input-size",
        "--http-root-cert",
        "--http-server-cert",
        "--http-server-key",
        "--http-use-ssl",
        "--http-use-ssl-mutual",
        "--memory-budget",
        "--model-environment",
        "--repository-cache-folder",
        "--request-log",
        "--request-log-client",
        "--request-log-sample",
        "--request-memory-limit",
        "--strict-devices",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Field names are tritonserver's flags with underscores; `build_parser` says what each does."""

    model_repository: tuple[Path | RemoteAddress, ...]
    repository_cache_folder: Path | None = None
    server_id: str = "slipway"
    model_control_mode: str = "none"
    model_namespacing: bool = False
    load_model: tuple[str, ...] = ()
    repository_poll_secs: float = 15.0
    disable_auto_complete_config: bool = False
    strict_readiness: bool = True
    strict_devices: bool = False
    model_environment: str = "all"
    exit_on_error: bool = True
    wanted_models_file: Path | None = None
    exit_timeout_secs: float = 30.0
    process_heartbeat_timeout_secs: float = 60.0
    model_config_name: str | None = None
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_load_gpu_limit: tuple[tuple[int, float], ...] = ()
    backend_config: tuple[tuple[str, str, str], ...] = ()
    cache_config: tuple[tuple[str, str, str], ...] = ()
    host_policy: tuple[HostPolicySetting, ...] = ()
    memory_budget: int = 0
    gpu_memory_budget: int = 0
    request_memory_limit: int = 0
    request_stall_secs: float = 30.0
    request_min_rate: int = 1024
    grpc_stream_idle_secs: float = 3600.0
    rate_limit: str = "off"
    rate_limit_resource: tuple[tuple[str, int, int | None], ...] = ()
    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    reuse_http_port: bool = False
    http_max_input_size: int = 64 << 20
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
    allow_cpu_metrics: bool = True
    allow_gpu_metrics: bool = True
    auth_file: Path | None = None
    address_file: Path | None = None
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

    def metric_enabled(self, group: str) -> bool:
        """Whether --metrics-config has a group of latencies; by default only the counters."""
        return boolean(dict(self.metrics_config).get(group, str(group == "counter_latencies")))

    @property
    def histogram_latencies(self) -> bool | None:
        """Whether models have a histogram of first responses; None where --metrics-config does not say."""
        text = dict(self.metrics_config).get("histogram_latencies")
        return None if text is None else boolean(text)

    @property
    def summary_quantiles(self) -> list[float]:
        """Of the latency summaries; what error each allows is taken and not needed."""
        text = dict(self.metrics_config).get("summary_quantiles", "0.5,0.9,0.95,0.99,0.999")
        return [float(one.partition(":")[0]) for one in text.split(",")]

    @property
    def cache_size(self) -> int:
        """Bytes of the response cache; 0 without one."""
        return next((int(value) for _, setting, value in self.cache_config if setting == "size"), 0)


def parse(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Options, and warnings for flags without effect; exits with status 2 and one sentence for a bad command line.

    An argument "@FILE" stands for the lines of that file, one argument each, which keeps keys out of the process list.
    """
    parser = build_parser()
    values = vars(parser.parse_args(arguments))
    ignored: list[str] = values.pop("ignored") or []
    strict_config = values.pop("strict_model_config")
    values["disable_auto_complete_config"] |= bool(strict_config)
    values["model_repository"] = _repositories(parser, values)
    for protocol in ("http", "grpc", "metrics"):
        port = values[f"{protocol}_port"]
        if values[f"allow_{protocol}"] and not 0 <= port <= 65535:
            parser.error(f"--{protocol}-port: expected a port from 0 to 65535, got '{port}'")
    if values["response_cache_byte_size"] is not None:
        if values["cache_config"]:
            parser.error("--response-cache-byte-size and --cache-config say the same: give --cache-config alone")
        values["cache_config"] = [values["response_cache_byte_size"]]
    del values["response_cache_byte_size"]
    models = values["load_model"]
    if models and values["model_control_mode"] != "explicit":
        parser.error("--load-model needs --model-control-mode=explicit")
    if "*" in models and len(models) > 1:
        parser.error("--load-model=* loads all models, so it cannot be given with others")
    for flag, kind in (("http_restricted_api", "api"), ("grpc_restricted_protocol", "protocol")):
        if twice := restricted_twice(values[flag]):
            name = flag.replace("_", "-")
            parser.error(f"--{name}: restricted {kind} '{twice}' can not be specified in multiple config groups")
    warnings = [f"{flag} has no effect on this server" for flag in ignored]
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Options(**frozen), warnings


def _repositories(parser: argparse.ArgumentParser, values: dict[str, Any]) -> list[Path | RemoteAddress]:
    """Each once, however often it is given. With --exit-on-error=false a folder may be missing: it may come."""
    given: list[Path | RemoteAddress] = values["model_repository"]
    if not given:
        parser.error("--model-repository is required: the folder that holds one folder for each model")
    for folder in given:
        missing = isinstance(folder, Path) and not folder.is_dir()
        if missing and (values["exit_on_error"] or Path(str(folder)).exists()):
            parser.error(f"--model-repository: '{folder}' is not a folder")
    once: dict[Path | RemoteAddress, Path | RemoteAddress] = {}
    for place in given:
        once.setdefault(place.resolve() if isinstance(place, Path) else place, place)
    return list(once.values())


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option takes its default from `Options`."""
    parser = Parser(
        prog="python -m serving",
        description="Slipway's inference server, with tritonserver's flags.",
        fromfile_prefix_chars="@",
    )
    parser.own.update(OWN_FLAGS)
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}

    def add(flag: str, kind: Callable[[str], Any], text: str, **extra: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        if kind is boolean:
            extra |= {"nargs": "?", "const": True, "metavar": "BOOL"}
        if extra.get("action") != "append":
            extra.setdefault("default", defaults.get(name))
        parser.add_argument(flag, type=kind, help=text, **extra)

    for group in (
        _repository_flags,
        _residency_flags,
        _scheduling_flags,
        _http_flags,
        _grpc_flags,
        _keepalive_flags,
        _other_flags,
    ):
        group(add)
    add_foreign_flags(parser)
    return parser


Add = Callable[..., None]


def _repository_flags(add: Add) -> None:
    add(
        "--model-repository",
        repository,
        "folder of models, or its s3://, gs://, as:// or other address; may be repeated",
        action="append",
        dest="model_repository",
        default=[],
    )
    add("--model-store", repository, "the same as --model-repository", action="append", dest="model_repository")
    add("--repository-cache-folder", Path, "where models of the cloud are copied to while the server runs")
    add(
        "--model-control-mode",
        lowered,
        "none: load all at start; poll: follow the folder; explicit: load on request",
        choices=MODES,
    )
    add("--model-namespacing", boolean, "serve models of the same name, one in each repository")
    add(
        "--load-model",
        str,
        "explicit mode: load this model at start, '*' for all; may be repeated",
        action="append",
        default=[],
    )
    add(
        "--repository-poll-secs",
        seconds,
        "poll mode: seconds between two looks at the repositories; 0 for one look at start",
    )
    add("--strict-model-config", boolean, "true: config.pbtxt must be complete (deprecated in Triton)", default=None)
    add("--disable-auto-complete-config", boolean, "do not complete config.pbtxt from the model file")
    add(
        "--wanted-models-file",
        Path,
        "JSON list of the models that somebody will load: one that is not there yet is 503",
    )
    add("--strict-readiness", boolean, "ready only while every model that should be loaded is")
    add("--strict-devices", boolean, "KIND_GPU on a machine without a GPU fails instead of falling back to the CPU")
    add(
        "--model-environment",
        lowered,
        "the variables of the server's environment that models in processes of their own see: all, or bounded to the "
        "system's, the locale's and the frameworks'",
        choices=("all", "bounded"),
    )
    add("--exit-on-error", boolean, "end when a model fails to load at start")
    add("--exit-timeout-secs", seconds, "how long a shutdown waits for requests under way")
    add(
        "--process-heartbeat-timeout-secs",
        heartbeat_timeout,
        "when a model's process without a sign of life is replaced",
    )
    add("--model-load-thread-count", at_least_one, "how many models load at the same time")
    add("--model-load-retry-count", whole, "how often a load that failed is tried again")
    add(
        "--model-load-gpu-limit",
        gpu_limit,
        "<device>:<fraction>: load nothing on a GPU whose memory is used to more than that; may be repeated",
        action="append",
        default=[],
    )
    add("--model-config-name", config_name, "use <model>/configs/<name>.pbtxt where a model has it")
    add(
        "--backend-config",
        backend_setting,
        "<backend>,<setting>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _residency_flags(add: Add) -> None:
    add(
        "--host-policy",
        host_policy,
        "<policy>,cpu-cores=<cores> or <policy>,numa-node=<number>: where its instances run; may be repeated",
        action="append",
        default=[],
    )
    add("--memory-budget", count, "bytes on the host that models may hold before evictable ones are put to sleep")
    add("--gpu-memory-budget", count, "the same for each GPU")
    add(
        "--request-memory-limit",
        count,
        "bytes of requests held at a time; by default a quarter of the machine's memory",
    )
    add("--request-stall-secs", seconds, "how long a request that has begun may fall short of its rate; 0 for ever")
    add("--request-min-rate", whole, "bytes a second that a client which has begun a request must send")
    add("--grpc-stream-idle-secs", seconds, "how long a stream stays open on which nothing is asked; 0 for ever")


def _scheduling_flags(add: Add) -> None:
    add(
        "--cache-config",
        cache_setting,
        "local,size=<bytes>: keep answers of models with response_cache",
        action="append",
        default=[],
    )
    add("--response-cache-byte-size", cache_size, argparse.SUPPRESS)
    add(
        "--rate-limit",
        lowered,
        "execution_count: instances wait for the resources of their groups",
        choices=("off", "execution_count"),
    )
    add(
        "--rate-limit-resource",
        resource,
        "<name>:<count>[:<device>]: copies of a resource; by default as many as the largest demand",
        action="append",
        default=[],
    )


def _http_flags(add: Add) -> None:
    _tls_flags(add, "http")
    add("--allow-http", boolean, "serve HTTP")
    add("--http-address", address, "address to bind; every interface by default, as tritonserver does")
    add("--http-port", number, "port of HTTP; 0 takes a free one")
    add("--reuse-http-port", boolean, "share the port with other servers that were told so")
    add("--http-max-input-size", count, "largest request body in bytes")
    add(
        "--http-restricted-api",
        functools.partial(restriction, "api"),
        "<api>[,<api>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _tls_flags(add: Add, protocol: str) -> None:
    add(f"--{protocol}-use-ssl", boolean, "speak TLS")
    add(f"--{protocol}-use-ssl-mutual", boolean, "speak TLS only with clients that show a certificate")
    add(f"--{protocol}-server-cert", Path, "PEM file of the server's certificate chain")
    add(f"--{protocol}-server-key", Path, "PEM file of its private key")
    add(f"--{protocol}-root-cert", Path, "PEM file of the authority that signs clients' certificates")
    add(f"--{protocol}-header-forward-pattern", pattern, "headers that match become parameters of the request")


def _grpc_flags(add: Add) -> None:
    _tls_flags(add, "grpc")
    add(
        "--grpc-infer-response-compression-level",
        lowered,
        "compress responses for clients that take it",
        choices=("none", "low", "medium", "high"),
    )
    add("--allow-grpc", boolean, "serve gRPC")
    add("--grpc-address", address, "address to bind; every interface by default")
    add("--grpc-port", number, "port of gRPC; 0 takes a free one")
    add("--reuse-grpc-port", boolean, "share the port with other servers that were told so")
    add("--grpc-max-message-size", count, "largest message in bytes")
    add(
        "--grpc-restricted-protocol",
        functools.partial(restriction, "protocol"),
        "<protocol>[,<protocol>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _keepalive_flags(add: Add) -> None:
    """All in milliseconds, but the counts."""
    add("--grpc-keepalive-time", count, "ping a connection that was silent so long")
    add("--grpc-keepalive-timeout", count, "close it without an answer in this time")
    add("--grpc-keepalive-permit-without-calls", boolean, "ping and be pinged without calls under way too")
    add("--grpc-http2-max-pings-without-data", whole, "pings of ours without data between them; 0 for any")
    add("--grpc-http2-min-recv-ping-interval-without-data", whole, "shortest time between two pings of a client")
    add("--grpc-http2-max-ping-strikes", whole, "pings too early that a client may send; 0 for any")
    add("--grpc-max-connection-age", whole, "let a connection go when it is so old; 0 for never")
    add("--grpc-max-connection-age-grace", whole, "end what is left on it so much later; 0 for never")


def _other_flags(add: Add) -> None:
    add("--allow-client-shm", boolean, "clients may register shared memory, and so pass tensors by reference")
    add("--allow-metrics", boolean, "serve Prometheus metrics and the live feed")
    add("--metrics-address", address, "address to bind; --http-address when not given")
    add("--metrics-port", number, "port of the metrics; 0 takes a free one")
    add(
        "--metrics-config",
        metrics_setting,
        "<setting>=<value>: counter_latencies, histogram_latencies, summary_latencies or summary_quantiles; may be repeated",
        action="append",
        default=[],
    )
    add("--metrics-interval-ms", count, "what the machine's metrics show is read anew after so many milliseconds")
    add("--allow-cpu-metrics", boolean, "show the machine's CPU and memory")
    add("--allow-gpu-metrics", boolean, "show its GPUs")
    add("--auth-file", Path, "JSON file of hashed tokens: who may infer which models")
    add("--address-file", Path, "write the bound addresses and the process id here, as JSON, once they answer")
    add("--id", str, "name of this server in its metadata", dest="server_id", default="slipway")
    add(
        "--trace-config",
        trace_setting,
        "[triton,|opentelemetry,]<setting>=<value>; may be repeated",
        action="append",
        default=[],
    )
    for flag, setting in DEPRECATED_TRACE_FLAGS.items():
        add(flag, functools.partial(trace_setting_of, setting), argparse.SUPPRESS, action="append", dest="trace_config")
    add("--request-log", str, "write one JSON line for each request to this file, '-' for standard output")
    add("--request-log-sample", fraction, "the part of the requests that is logged, from 0.01 to 1")
    add(
        "--request-log-client", str, "hashed: log who asked, as a salted hash of the address", choices=("off", "hashed")
    )
    add("--log-verbose", verbosity, "1 and more: log requests to the repository and details of loading")
    add("--log-info", boolean, "log informative messages")
    add("--log-warning", boolean, "log warnings")
    add("--log-error", boolean, "log errors")
    add("--log-file", Path, "write the log to this file; it may be moved away while the server runs")
    add("--log-format", str, "how lines begin", choices=("default", "ISO8601"))
