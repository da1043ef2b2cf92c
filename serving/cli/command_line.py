"""Parses the flags of tritonserver, of Slipway and of plugins into Options.

A tritonserver flag for a feature that this server lacks is accepted with a warning if it only tunes the feature. Otherwise it
is refused.
"""

import argparse
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repository.core.errors import RepositoryError
from repository.files.signatures import check_key
from repository.remote.address import RemoteAddress
from serving.cli.option_values import (
    address,
    at_least_one,
    backend_setting,
    boolean,
    cache_setting,
    cache_size,
    cap,
    config_name,
    count,
    fraction,
    gpu_limit,
    heartbeat_timeout,
    host_policy,
    latency_buckets,
    lowered,
    metrics_setting,
    model_name,
    number,
    pattern,
    repository,
    resource,
    restricted_twice,
    restriction,
    seconds,
    verbosity,
    whole_number,
    workers,
)
from serving.cli.options import Options, SourceOptions
from serving.cli.plugin_flags import Add, PluginFlags
from serving.cli.trace_config import DEPRECATED_TRACE_FLAGS, trace_setting, trace_setting_of
from serving.plugins.plugin import imported
from serving.plugins.table import PLUGINS

IMAGE_S = 60.0  # how long the server waits for the folder of an image beside it
MODES = ("none", "poll", "explicit")
# Flags that tritonserver 2.51 lacks. An abbreviation that fits one of tritonserver's flags never means one of these.
OWN_FLAGS = frozenset(
    (
        "--address-file",
        "--allow-client-shm",
        "--auth-file",
        "--behind-load-balancer",
        "--capture-folder",
        "--check-memory",
        "--drain-secs",
        "--frontend-workers",
        "--gpu-memory-budget",
        "--grpc-infer-thread-count",
        "--grpc-max-message-size",
        "--grpc-max-response-pool-size",
        "--http-max-connection-age",
        "--http-max-input-size",
        "--http-root-cert",
        "--http-server-cert",
        "--http-server-key",
        "--http-use-ssl",
        "--http-use-ssl-mutual",
        "--log-console",
        "--log-file-max-bytes",
        "--max-unloads-per-poll",
        "--memory-budget",
        "--metrics-buckets-per-doubling",
        "--metrics-level",
        "--model-environment",
        "--model-name",
        "--model-signature-key",
        "--ready-despite-failed-models",
        "--ready-despite-new-models",
        "--repository-cache-bytes",
        "--repository-cache-folder",
        "--request-log",
        "--request-log-client",
        "--request-log-sample",
        "--request-memory-limit",
        "--strict-devices",
        "--traffic-remotes",
        "--traffic-state",
        "--usage-log",
    )
)
# Flags that are accepted with a warning, so that tritonserver's command lines work.
WITHOUT_EFFECT = (
    "--http-thread-count",
    "--grpc-infer-thread-count",
    "--grpc-infer-allocation-pool-size",
    "--grpc-max-response-pool-size",
    "--pinned-memory-pool-byte-size",
    "--cuda-memory-pool-byte-size",
    "--cuda-virtual-address-size",
    "--enable-peer-access",
    "--min-supported-compute-capability",
    "--backend-directory",
    "--repoagent-directory",
    "--cache-directory",
    "--buffer-manager-thread-count",
    "--sagemaker-port",
    "--sagemaker-safe-port-range",
    "--sagemaker-thread-count",
    "--vertex-ai-port",
    "--vertex-ai-thread-count",
    "--vertex-ai-default-model",
)
# Flags that are refused unless their value is false, so that a missing feature does not go unnoticed.
REFUSED = {
    "--allow-sagemaker": "this server has no routes for SageMaker; set it to false, and proxy /ping and /invocations",
    "--allow-vertex-ai": "this server has no routes for Vertex AI; set it to false, and let Vertex AI use the V2 routes",
}


class _Parser(argparse.ArgumentParser):
    """Accepts abbreviations of flags. An abbreviation that fits one of tritonserver's flags means that flag."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.own_flags = set(OWN_FLAGS)  # plugins add theirs

    def _get_option_tuples(self, option_string: str) -> list[Any]:  # argparse's own, untyped
        found = super()._get_option_tuples(option_string)
        return [one for one in found if one[0].option_strings[0] not in self.own_flags] or found


def parse(arguments: Sequence[str]) -> tuple[Options, list[str]]:
    """Return the options, and warnings for flags without effect. Exit with status 2 and one sentence for a bad command line.

    An argument "@FILE" is replaced by the lines of that file, one argument each. This keeps secrets out of the process list.
    """
    parser = build_parser()
    values = vars(parser.parse_args(_without_program(arguments)))
    ignored: list[str] = values.pop("ignored") or []
    strict_config = values.pop("strict_model_config")
    values["disable_auto_complete_config"] |= bool(strict_config)
    source, notes = _taken_by_plugins(parser, values)
    values["source"] = source
    values["model_repository"] += values.pop("model_store")
    if source is None or not source.refusal:
        values["model_repository"] = _repositories(parser, values["model_repository"], values["exit_on_error"])
    if values["model_name"] and len(values["model_repository"]) != 1:
        parser.error("--model-name needs one --model-repository, whose folder may be one model")
    if values["model_name"] and isinstance(values["model_repository"][0], RemoteAddress):
        parser.error("--model-name needs a --model-repository on this machine: in the cloud it is a repository")
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
    if values["ready_despite_failed_models"].number and values["exit_on_error"]:
        parser.error(
            "--ready-despite-failed-models needs --exit-on-error=false, or a model that fails at the start ends the server"
        )
    for key in values["model_signature_key"]:
        try:
            check_key(key)
        except RepositoryError as error:
            parser.error(f"--model-signature-key: {error.message}")
    if values["usage_log"] is not None and values["auth_file"] is None:
        parser.error("--usage-log needs --auth-file, which says whose each token is")
    for flag, kind in (("http_restricted_api", "api"), ("grpc_restricted_protocol", "protocol")):
        if twice := restricted_twice(values[flag]):
            name = flag.replace("_", "-")
            parser.error(f"--{name}: restricted {kind} '{twice}' can not be specified in multiple config groups")
    warnings = [*(f"{flag} has no effect on this server" for flag in ignored), *notes]
    frozen: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    return Options(**frozen), warnings


def _taken_by_plugins(
    parser: argparse.ArgumentParser, values: dict[str, Any]
) -> tuple[SourceOptions | None, list[str]]:
    """Let the plugins remove their flags from the values. Return the source of models, or None, and warnings."""
    taken = [flags.take(parser, values) for flags in _plugin_flags()]
    asked = [source for source, _ in taken if source is not None]
    return next(iter(asked), None), [note for _, notes in taken for note in notes]


def _without_program(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments without the word `tritonserver`, with which manifests for Triton's image begin the command.

    Arguments of the form --flag=value may precede the word, because Slipway's image puts some flags first.
    """
    place = next((place for place, word in enumerate(arguments) if not (word[:2] == "--" and "=" in word)), None)
    if place is None or os.path.basename(arguments[place]) != "tritonserver":
        return arguments
    return [*arguments[:place], *arguments[place + 1 :]]


def _repositories(
    parser: argparse.ArgumentParser, given: list[Path | RemoteAddress], exit_on_error: bool
) -> list[Path | RemoteAddress]:
    """Return the repositories without repetitions. With --exit-on-error=false a folder may be missing and appear later."""
    if not given:
        parser.error("--model-repository is required: the folder that holds one folder for each model")
    for folder in given:
        if isinstance(folder, Path) and os.environ.get("MODEL_INIT_MODE") == "async":
            _await_image(folder)
        missing = isinstance(folder, Path) and not folder.is_dir()
        if missing and (exit_on_error or Path(str(folder)).exists()):
            parser.error(f"--model-repository: '{folder}' is not a folder")
    once: dict[Path | RemoteAddress, Path | RemoteAddress] = {}
    for place in given:
        once.setdefault(place.resolve() if isinstance(place, Path) else place, place)
    return list(once.values())


def _await_image(folder: Path) -> None:
    """Wait for the folder of an image that KServe runs beside the server, which links it when it starts.

    Source: KServe, pkg/utils/storage.go, which sets MODEL_INIT_MODE for such images ("modelcars").
    """
    deadline = time.monotonic() + IMAGE_S
    while not folder.is_dir() and time.monotonic() < deadline:
        time.sleep(0.1)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser; every option takes its default from `Options`."""
    parser = _Parser(
        prog="python -m serving",
        description="Slipway's inference server, with tritonserver's flags.",
        fromfile_prefix_chars="@",
    )
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}

    def add(flag: str, kind: Callable[[str], object], text: str, **extra: Any) -> None:
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

    def add_own(flag: str, kind: Callable[[str], object], text: str, **extra: Any) -> None:
        parser.own_flags.add(flag)
        add(flag, kind, text, **extra)

    for flags in _plugin_flags():
        flags.add(add_own)
    _add_foreign_flags(parser)
    return parser


def _plugin_flags() -> list[type[PluginFlags]]:
    return [imported(plugin.flags) for plugin in PLUGINS]


def _repository_flags(add: Add) -> None:
    add(
        "--model-repository",
        repository,
        "folder of models, or its s3://, gs://, as:// or other address; may be repeated",
        action="append",
        dest="model_repository",
        default=[],
    )
    add(
        "--model-store",
        repository,
        "the same as --model-repository, or with a plugin's flags the folder of the archives to register",
        action="append",
        dest="model_store",
        default=[],
    )
    add("--model-name", model_name, "if the folder of --model-repository is one model: serve it under this name")
    add(
        "--repository-cache-folder",
        Path,
        "folder that keeps copies of the models in cloud repositories, for all servers here",
    )
    add(
        "--repository-cache-bytes",
        whole_number,
        "bytes up to which copies that no server uses are kept in --repository-cache-folder",
    )
    add(
        "--model-control-mode",
        lowered,
        "none: load all at start; poll: follow the folder; explicit: load on request",
        choices=MODES,
    )
    add("--model-namespacing", boolean, "serve models with the same name from several repositories")
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
        "poll mode: seconds between two polls of the repositories; 0 to poll only at start",
    )
    add(
        "--max-unloads-per-poll",
        cap,
        "poll mode: a poll that would unload more models than this number or share (50%%) unloads none until it is confirmed",
    )
    add(
        "--model-signature-key",
        Path,
        "PEM file of a public key: load only versions whose files it has signed; may be repeated",
        action="append",
        default=[],
    )
    add("--strict-model-config", boolean, "true: config.pbtxt must be complete (deprecated in Triton)", default=None)
    add("--disable-auto-complete-config", boolean, "do not complete config.pbtxt from the model file")
    add(
        "--wanted-models-file",
        Path,
        "JSON list of models that will be loaded: requests to one that is not loaded yet get 503",
    )
    add("--traffic-remotes", Path, "JSON file of the other servers that rollouts may call, with the headers to send")
    add("--strict-readiness", boolean, "ready only while every model that should be loaded serves")
    add(
        "--ready-despite-new-models",
        boolean,
        "with --strict-readiness: a model that was found after the start, and has not served yet, does not count",
    )
    add(
        "--ready-despite-failed-models",
        cap,
        "with --strict-readiness: up to this number or share (10%%) of the models may fail at the start, if another serves",
    )
    add("--strict-devices", boolean, "KIND_GPU on a machine without a GPU fails instead of falling back to the CPU")
    add(
        "--model-environment",
        lowered,
        "environment variables that models in separate processes see: all, or bounded to those of the system, the "
        "locale and the frameworks",
        choices=("all", "bounded"),
    )
    add("--exit-on-error", boolean, "end when a model fails to load at start")
    add("--behind-load-balancer", boolean, "a load balancer polls /v2/health/ready: --drain-secs is 5 by default")
    add(
        "--drain-secs",
        seconds,
        "how long the server accepts connections after a stop signal, while it reports not ready",
    )
    add("--exit-timeout-secs", seconds, "how long a shutdown waits for requests under way")
    add(
        "--process-heartbeat-timeout-secs",
        heartbeat_timeout,
        "replace a model's process that has sent no heartbeat for this time",
    )
    add("--model-load-thread-count", at_least_one, "how many models load at the same time")
    add("--model-load-retry-count", whole_number, "how often a failed load is retried")
    add(
        "--model-load-gpu-limit",
        gpu_limit,
        "<device>:<fraction>: load no model on a GPU if more of its memory is used; may be repeated",
        action="append",
        default=[],
    )
    add("--model-config-name", config_name, "use <model>/configs/<name>.pbtxt if a model has this file")
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
        "<policy>,cpu-cores=<cores> or <policy>,numa-node=<number>: where instances with the policy run; may be repeated",
        action="append",
        default=[],
    )
    add("--check-memory", boolean, "refuse a model whose files do not fit into the available memory")
    add("--memory-budget", count, "bytes on the host that models may hold before evictable ones are put to sleep")
    add("--gpu-memory-budget", count, "bytes on each GPU that models may hold before evictable ones are put to sleep")
    add(
        "--request-memory-limit",
        count,
        "bytes of requests held at a time; by default a quarter of the machine's memory",
    )
    add(
        "--request-stall-secs",
        seconds,
        "how long a request may arrive more slowly than --request-min-rate; 0 for no limit",
    )
    add("--request-min-rate", whole_number, "bytes a second that a client must send while its request is incomplete")
    add("--grpc-stream-idle-secs", seconds, "how long a stream without requests stays open; 0 for no limit")


def _scheduling_flags(add: Add) -> None:
    add(
        "--cache-config",
        cache_setting,
        "local,size=<bytes>: cache the responses of models with response_cache",
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
    add(
        "--frontend-workers",
        workers,
        "processes that serve HTTP and gRPC, while the main process only runs models; 0 for none",
    )
    _tls_flags(add, "http")
    add("--allow-http", boolean, "serve HTTP")
    add("--http-address", address, "address to bind; every interface by default, as tritonserver does")
    add("--http-port", number, "port of HTTP; 0 takes a free one")
    add("--reuse-http-port", boolean, "share the port with other servers that have this flag")
    add("--http-max-input-size", count, "largest request body in bytes")
    add("--http-max-connection-age", whole_number, "milliseconds after which a connection is closed; 0 for never")
    add(
        "--http-restricted-api",
        functools.partial(restriction, "api"),
        "<api>[,<api>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _tls_flags(add: Add, protocol: str) -> None:
    add(f"--{protocol}-use-ssl", boolean, "speak TLS")
    add(f"--{protocol}-use-ssl-mutual", boolean, "require a client certificate (mutual TLS)")
    add(f"--{protocol}-server-cert", Path, "PEM file of the server's certificate chain")
    add(f"--{protocol}-server-key", Path, "PEM file of the certificate's private key")
    add(f"--{protocol}-root-cert", Path, "PEM file of the CA that signs clients' certificates")
    add(f"--{protocol}-header-forward-pattern", pattern, "headers that match become parameters of the request")


def _grpc_flags(add: Add) -> None:
    _tls_flags(add, "grpc")
    add(
        "--grpc-infer-response-compression-level",
        lowered,
        "compress responses for clients that accept it",
        choices=("none", "low", "medium", "high"),
    )
    add("--allow-grpc", boolean, "serve gRPC")
    add("--grpc-address", address, "address to bind; every interface by default")
    add("--grpc-port", number, "port of gRPC; 0 takes a free one")
    add("--reuse-grpc-port", boolean, "share the port with other servers that have this flag")
    add("--grpc-max-message-size", count, "largest message in bytes")
    add(
        "--grpc-restricted-protocol",
        functools.partial(restriction, "protocol"),
        "<protocol>[,<protocol>]:<header>=<value>; may be repeated",
        action="append",
        default=[],
    )


def _keepalive_flags(add: Add) -> None:
    """Add the keepalive flags. Their values are milliseconds or counts."""
    add("--grpc-keepalive-time", count, "milliseconds of silence after which a connection is pinged")
    add("--grpc-keepalive-timeout", count, "milliseconds after which a connection with an unanswered ping is closed")
    add("--grpc-keepalive-permit-without-calls", boolean, "send and accept pings even if no call is under way")
    add(
        "--grpc-http2-max-pings-without-data",
        whole_number,
        "most pings of the server without data between them; 0 for no limit",
    )
    add(
        "--grpc-http2-min-recv-ping-interval-without-data",
        whole_number,
        "shortest time in milliseconds between two pings of a client",
    )
    add("--grpc-http2-max-ping-strikes", whole_number, "how many early pings a client may send; 0 for no limit")
    add("--grpc-max-connection-age", whole_number, "milliseconds after which a connection is closed; 0 for never")
    add(
        "--grpc-max-connection-age-grace",
        whole_number,
        "milliseconds after which the remaining calls of that connection are cancelled; 0 for never",
    )


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
    add(
        "--metrics-level",
        str,
        "lean: for each version only requests, failures, waiting requests, memory and one histogram",
        choices=("full", "lean"),
    )
    add(
        "--metrics-buckets-per-doubling",
        latency_buckets,
        "latency buckets for each doubling: 1, 2, 5 or 10; 0 leaves only sums and counts; 10, or 1 when lean, if not given",
    )
    add("--metrics-interval-ms", count, "milliseconds between two readings of the machine's metrics")
    add("--allow-cpu-metrics", boolean, "show the machine's CPU and memory")
    add("--allow-gpu-metrics", boolean, "show its GPUs")
    add("--auth-file", Path, "JSON file of hashed tokens: who may infer which models")
    add("--usage-log", Path, "folder for what each token of --auth-file has used on each day")
    add("--address-file", Path, "write the bound addresses and the process id here, as JSON, once the listeners answer")
    add("--traffic-state", Path, "file for the breaches of rollouts, so that they survive a restart")
    add(
        "--capture-folder",
        Path,
        "folder of captures: what to keep of clients' requests, and the requests that are kept",
    )
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
        "--request-log-client",
        str,
        "hashed: log the client, as a salted hash of its address",
        choices=("off", "hashed"),
    )
    add("--log-verbose", verbosity, "1 and more: log requests to the repository and details of loading")
    add("--log-info", boolean, "log informative messages")
    add("--log-warning", boolean, "log warnings")
    add("--log-error", boolean, "log errors")
    add("--log-file", Path, "write the log to this file; it may be moved away while the server runs")
    add("--log-console", boolean, "write the log to standard error, too")
    add(
        "--log-file-max-bytes",
        whole_number,
        "size at which a new file begins, with five older files kept; 0 for one file",
    )
    formats = [name for plugin in PLUGINS for name in plugin.log_formats]
    add("--log-format", str, "how lines begin", choices=("default", "ISO8601", "json", *formats))


def _add_foreign_flags(parser: argparse.ArgumentParser) -> None:
    """Add tritonserver's flags for features that this server lacks. The parsed value `ignored` lists the flags given."""
    for flag in WITHOUT_EFFECT:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Ignored, help=argparse.SUPPRESS)
    for flag in REFUSED:
        parser.add_argument(flag, nargs="?", dest="ignored", action=_Refused, help=argparse.SUPPRESS)


class _Ignored(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        namespace.ignored = [*(namespace.ignored or []), option_string]


class _Refused(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        if str(values).lower() not in ("false", "0", "off", "no"):
            parser.error(f"{option_string}: {REFUSED[str(option_string)]}")
