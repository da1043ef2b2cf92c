"""The settings that the core gives a worker at its start. Numbers of descriptors are those of the worker."""

from dataclasses import dataclass

from serving.cli.options import Options
from serving.telemetry.logs import LogValues

BEAT_S = 0.25  # between two signs of life of a worker
MAX_COMMAND = 1 << 16  # bytes of a message beside the link


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """number: of this worker, counted from 1. control: of messages beside the link, and of connections that are passed on.
    requests, responses: the shared memory of each direction. http, grpc: listening sockets."""

    options: Options
    log_values: LogValues
    number: int
    workers: int
    page: int
    link: int
    control: int
    requests: int
    responses: int
    http: tuple[int, ...]
    grpc: tuple[int, ...]
