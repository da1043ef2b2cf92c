"""The settings that the core gives a worker at its start."""

from dataclasses import dataclass

from serving.cli.options import Options
from serving.telemetry.logs import LogValues

BEAT_S = 0.25  # pause between two heartbeats of a worker
MAX_COMMAND = 1 << 16  # bytes of a message over the control socket


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of one worker. All fields after `workers` are file descriptors in the worker's process.

    number: the number of this worker, from 1. page: the SharedPage. control: the socket for commands and passed connections.
    requests, responses: the shared memory of each direction. http, grpc: the listening sockets."""

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
