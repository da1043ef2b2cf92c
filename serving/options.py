"""The command line: tritonserver's flag names, validated once into a frozen object."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODES = ("none", "poll", "explicit")


@dataclass(frozen=True, slots=True)
class Restriction:
    """--http-restricted-api / --grpc-restricted-protocol: these groups of routes need this header with this value."""

    apis: tuple[str, ...]  # health metadata inference shared-memory model-config model-repository statistics trace logging
    header: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Field names are tritonserver's flags with underscores; the help texts below say what each does."""

    model_repository: tuple[Path, ...]
    server_id: str = "slipway"
    model_control_mode: str = "none"
    load_model: tuple[str, ...] = ()
    repository_poll_secs: float = 15.0
    disable_auto_complete_config: bool = False
    strict_readiness: bool = True
    strict_devices: bool = False
    exit_on_error: bool = True
    exit_timeout_secs: float = 30.0
    model_load_thread_count: int = 4
    backend_config: tuple[tuple[str, str, str], ...] = ()  # (backend, setting, value)
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
    allow_metrics: bool = True
    metrics_address: str = ""  # empty: as http_address
    metrics_port: int = 8002
    auth_file: Path | None = None
    address_file: Path | None = None
    log_verbose: int = 0
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_format: str = "default"


def parse(arguments: Sequence[str]) -> Options:
    """Options from a command line; exits with status 2 and one sentence for a bad one."""
    raise NotImplementedError


def build_parser() -> argparse.ArgumentParser:
    raise NotImplementedError
