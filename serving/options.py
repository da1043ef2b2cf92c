"""The command line: tritonserver's flag names, validated once into a frozen object."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repository.errors import RepositoryError
from repository.layout import check_name
from repository.remote_address import RemoteAddress, is_remote
from repository.remote_address import parse as parse_address

MODES = ("none", "poll", "explicit")
RESTRICTABLE = (
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)


@dataclass(frozen=True, slots=True)
class Restriction:
    """--http-restricted-api / --grpc-restricted-protocol: these groups of routes need this header with this value."""

    apis: tuple[str, ...]
    header: str
    value: str = dataclasses.field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Field names are tritonserver's flags with underscores; `build_parser` says what each does."""

    model_repository: tuple[Path | RemoteAddress, ...]
    repository_cache_folder: Path | None = None
    server_id: str = "slipway"
    model_control_mode: str = "none"
    load_model: tuple[str, ...] = ()
    repository_poll_secs: float = 15.0
    disable_auto_complete_config: bool = False
    strict_readiness: bool = True
    strict_devices: bool = False
    exit_on_error: bool = True
    exit_timeout_secs: float = 30.0
    model_config_name: str | None = None
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_load_gpu_limit: tuple[tuple[int, float], ...] = ()
    backend_config: tuple[tuple[str, str, str], ...] = ()
    cache_config: tuple[tuple[str, str, str], ...] = ()
    memory_budget: int = 0
    gpu_memory_budget: int = 0
    rate_limit: str = "off"
    rate_limit_resource: tuple[tuple[str, int, int | None], ...] = ()
    allow_http: bool = True
    http_address: str = "0.0.0.0"
    http_port: int = 8000
    http_max_input_size: int = 64 << 20
    http_restricted_api: tuple[Restriction, ...] = ()
    allow_grpc: bool = True
    grpc_address: str = "0.0.0.0"
    grpc_port: int = 8001
    grpc_max_message_size: int = (1 << 31) - 1
    grpc_restricted_protocol: tuple[Restriction, ...] = ()
    allow_client_shm: bool = False
    allow_metrics: bool = True
    metrics_address: str = ""
    metrics_port: int = 8002
    auth_file: Path | None = None
    address_file: Path | None = None
    request_log: str = ""
    request_log_sample: float = 1.0
    request_log_client: str = "off"
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True

    @property
    def cache_size(self) -> int:
        """Bytes of the response cache; 0 without one."""
        return next((int(value) for _, setting, value in self.cache_config if setting == "size"), 0)


# tritonserver's flags that tune what this server does not have; taken, so that its command lines work, and warned of.
WITHOUT_EFFECT = (
    "--http-thread-count",
    "--grpc-infer-thread-count",
    "--grpc-infer-allocation-pool-size",
    "--pinned-memory-pool-byte-size",
    "--cuda-memory-pool-byte-size",
    "--min-supported-compute-capability",
    "--backend-directory",
    "--repoagent-directory",
    "--cache-directory",
    "--buffer-manager-thread-count",
    "--allow-gpu-metrics",
    "--allow-cpu-metrics",
    "--metrics-interval-ms",
    "--reuse-http-port",
    "--reuse-grpc-port",
)


def parse(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Options, and warnings for flags without effect; exits with status 2 and one sentence for a bad command line.

    An argument "@FILE" stands for the lines of that file, one argument each, which keeps keys out of the process list.
    """
    parser = build_parser()
    values = vars(parser.parse_args(arguments))
    ignored: list[str] = values.pop("ignored") or []
    strict_config = values.pop("strict_model_config")
    if strict_config is not None:
        values["disable_auto_complete_config"] = strict_config
    if not values["model_repository"]:
        parser.error("--model-repository is required: the folder that holds one folder for each model")
    for folder in values["model_repository"]:
        if isinstance(folder, Path) and not folder.is_dir():
            parser.error(f"--model-repository: '{folder}' is not a folder")
    warnings = [f"{flag} has no effect on this server" for flag in ignored]
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Options(**frozen), warnings


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option takes its default from `Options`."""
    parser = argparse.ArgumentParser(
        prog="python -m serving",
        description="Slipway's inference server, with tritonserver's flags.",
        allow_abbrev=False,
        fromfile_prefix_chars="@",
    )
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}

    def add(flag: str, kind: Callable[[str], Any], text: str, **extra: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        if kind is _boolean:
            extra |= {"nargs": "?", "const": True, "metavar": "BOOL"}
        if extra.get("action") != "append":
            extra.setdefault("default", defaults.get(name))
        parser.add_argument(flag, type=kind, help=text, **extra)

    for group in (_repository_flags, _residency_flags, _scheduling_flags, _http_flags, _grpc_flags, _other_flags):
        group(add)
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Ignored, help=argparse.SUPPRESS)
    return parser


Add = Callable[..., None]


def _repository_flags(add: Add) -> None:
    add(
        "--model-repository",
        _repository,
        "folder of models, or its s3://, gs://, as:// or other address; may be repeated",
        action="append",
        dest="model_repository",
        default=[],
    )
    add("--model-store", _repository, "the same as --model-repository", action="append", dest="model_repository")
    add("--repository-cache-folder", Path, "where models of the cloud are copied to while the server runs")
    add(
        "--model-control-mode",
        str,
        "none: load all at start; poll: follow the folder; explicit: load on request",
        choices=MODES,
    )
    add(
        "--load-model",
        str,
        "explicit mode: load this model at start, '*' for all; may be repeated",
        action="append",
        default=[],
    )
    add("--repository-poll-secs", _positive, "poll mode: seconds between two looks at the repositories")
    add("--strict-model-config", _boolean, "true: config.pbtxt must be complete (deprecated in Triton)", default=None)
    add("--disable-auto-complete-config", _boolean, "do not complete config.pbtxt from the model file")
    add("--strict-readiness", _boolean, "ready only while every model that should be loaded is")
    add("--strict-devices", _boolean, "KIND_GPU on a machine without a GPU fails instead of falling back to the CPU")
    add("--exit-on-error", _boolean, "end when a model fails to load at start")
    add("--exit-timeout-secs", _positive, "how long a shutdown waits for requests under way")
    add("--model-load-thread-count", _count, "how many models load at the same time")
    add("--model-load-retry-count", _whole, "how often a load that failed is tried again")
    add(
        "--model-load-gpu-limit",
        _gpu_limit,
        "<device>:<fraction>: load nothing on a GPU whose memory is used to more than that; may be repeated",
        action="append",
        default=[],
    )
    add("--model-config-name", _config_name, "use <model>/configs/<name>.pbtxt where a model has it")
    add(
        "--backend-config",
        _backend_setting,
        "<backend>,<setting>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _residency_flags(add: Add) -> None:
    add("--memory-budget", _count, "bytes on the host that models may hold before evictable ones are put to sleep")
    add("--gpu-memory-budget", _count, "the same for each GPU")


def _scheduling_flags(add: Add) -> None:
    add(
        "--cache-config",
        _cache_setting,
        "local,size=<bytes>: keep answers of models with response_cache",
        action="append",
        default=[],
    )
    add(
        "--rate-limit",
        str,
        "execution_count: instances wait for the resources of their groups",
        choices=("off", "execution_count"),
    )
    add(
        "--rate-limit-resource",
        _resource,
        "<name>:<count>[:<device>]: copies of a resource; by default as many as the largest demand",
        action="append",
        default=[],
    )


def _http_flags(add: Add) -> None:
    add("--allow-http", _boolean, "serve HTTP")
    add("--http-address", str, "address to bind; every interface by default, as tritonserver does")
    add("--http-port", _port, "port of HTTP; 0 takes a free one")
    add("--http-max-input-size", _count, "largest request body in bytes")
    add(
        "--http-restricted-api",
        _restriction,
        "<api>[,<api>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _grpc_flags(add: Add) -> None:
    add("--allow-grpc", _boolean, "serve gRPC")
    add("--grpc-address", str, "address to bind; every interface by default")
    add("--grpc-port", _port, "port of gRPC; 0 takes a free one")
    add("--grpc-max-message-size", _count, "largest message in bytes")
    add(
        "--grpc-restricted-protocol",
        _restriction,
        "<protocol>[,<protocol>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _other_flags(add: Add) -> None:
    add("--allow-client-shm", _boolean, "clients may register shared memory, and so pass tensors by reference")
    add("--allow-metrics", _boolean, "serve Prometheus metrics and the live feed")
    add("--metrics-address", str, "address to bind; --http-address when not given")
    add("--metrics-port", _port, "port of the metrics; 0 takes a free one")
    add("--auth-file", Path, "JSON file of hashed tokens: who may infer which models")
    add("--address-file", Path, "write the bound addresses and the process id here, as JSON, once they answer")
    add("--id", str, "name of this server in its metadata", dest="server_id", default="slipway")
    add("--request-log", str, "write one JSON line for each request to this file, '-' for standard output")
    add("--request-log-sample", _fraction, "the part of the requests that is logged, from 0.01 to 1")
    add(
        "--request-log-client", str, "hashed: log who asked, as a salted hash of the address", choices=("off", "hashed")
    )
    add("--log-verbose", int, "1 and more: log requests to the repository and details of loading")
    add("--log-info", _boolean, "log informative messages")
    add("--log-warning", _boolean, "log warnings")
    add("--log-error", _boolean, "log errors")


class _Ignored(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.ignored = [*(namespace.ignored or []), option_string]


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "1", "on", "yes"):
        return True
    if text.lower() in ("false", "0", "off", "no"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, got '{text}'")


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got '{text}'")
    return int(text)


def _gpu_limit(text: str) -> tuple[int, float]:
    device, _, fraction = text.partition(":")
    try:
        value = float(fraction)
    except ValueError:
        value = -1.0
    if not device.isdigit() or not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected <device>:<fraction from 0 to 1>, got '{text}'")
    return int(device), value


def _config_name(text: str) -> str:
    try:
        return check_name(text)
    except RepositoryError as error:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be the name of a configuration: {error.message}") from None


def _repository(text: str) -> Path | RemoteAddress:
    if not is_remote(text):
        return Path(text)
    try:
        return parse_address(text)
    except RepositoryError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got '{text}'")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got '{text}'")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected a number of seconds over 0, got '{text}'")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0.01 to 1, got '{text}'")
    return value


def _backend_setting(text: str) -> tuple[str, str, str]:
    backend, comma, rest = text.partition(",")
    setting, equals, value = rest.partition("=")
    if not (comma and equals and setting):
        raise argparse.ArgumentTypeError(f"expected <backend>,<setting>=<value>, got '{text}'")
    return backend, setting, value


def _cache_setting(text: str) -> tuple[str, str, str]:
    cache, setting, value = _backend_setting(text)
    if cache != "local" or setting != "size" or not value.isdigit():
        raise argparse.ArgumentTypeError(f"expected local,size=<bytes>, got '{text}'")
    return cache, setting, value


def _resource(text: str) -> tuple[str, int, int | None]:
    name, _, rest = text.partition(":")
    count, colon, device = rest.partition(":")
    if not name or not count.isdigit() or (colon and not device.isdigit()):
        raise argparse.ArgumentTypeError(f"expected <name>:<count>[:<device>], got '{text}'")
    return name, int(count), int(device) if device else None


def _restriction(text: str) -> Restriction:
    """Triton's form: "model-repository,logging:admin-key=secret"."""
    names, colon, rest = text.partition(":")
    header, equals, value = rest.partition("=")
    apis = tuple(name.strip() for name in names.split(","))
    if not (colon and equals and header and value):
        raise argparse.ArgumentTypeError("expected <api>[,<api>]:<header>=<value>")
    for name in apis:
        if name not in RESTRICTABLE:
            raise argparse.ArgumentTypeError(f"unknown api '{name}'; expected one of {', '.join(RESTRICTABLE)}")
    return Restriction(apis, header.strip().lower(), value)
