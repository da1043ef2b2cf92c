"""Measures the same model in every server, one server at a time: closed loops, then Poisson arrivals at shares of their rate.

A server is started for its turn and stopped after the turn, because several servers use CPU even without requests. A server
that cannot be installed or started is left out, and the page gives the reason.
"""

import os
import time
from dataclasses import asdict, dataclass
from datetime import date

import numpy as np
import onnxruntime

from benchmarks.comparison import lesson, measure
from benchmarks.comparison.encodings import Encoding, check
from benchmarks.comparison.measure import CannotMeasure, order
from benchmarks.comparison.record import Key, Results, Unfinished
from benchmarks.comparison.subjects import Server, all_servers
from benchmarks.folders import CACHE, REPOSITORY
from benchmarks.machine import commit, machine
from benchmarks.servers.environments import CannotInstall
from benchmarks.servers.models import inputs, write
from benchmarks.servers.process import CannotStart, Running

SHARES = (0.5, 0.8)  # the arrival rates, as shares of the throughput in the closed loops of the same turn


@dataclass(frozen=True)
class Settings:
    """seconds: the duration of each measurement. only: the names of the servers to measure; empty for all servers."""

    rounds: int = 3
    seconds: int = 2
    warm_up_s: int = 2
    clients: tuple[int, ...] = (1, 8, 32, 128)
    only: tuple[str, ...] = ()
    frontend_workers: int = 0


QUICK = Settings(rounds=1, seconds=1, warm_up_s=1, clients=(1, 32))


def run(settings: Settings) -> Results:
    """Measure every server in every round; after an interrupted run, only the missing measurements."""
    servers = _chosen(settings)
    measured = commit()
    unfinished = Unfinished(CACHE / "peers.jsonl", asdict(settings) | {"commit": measured})
    busy = os.getloadavg()[0]
    expected = expected_numbers()
    absent: dict[str, str] = {}
    for number in range(1, settings.rounds + 1):
        for server in order(servers, number):
            if server.name not in absent and _missing(server, number, settings, unfinished):
                try:
                    _turn(server, number, settings, unfinished, expected)
                except (CannotInstall, CannotStart, CannotMeasure) as error:
                    absent[server.name] = str(error)
                    print(f"{server.title} is left out: {error}", flush=True)
    about = {
        "date": date.today().isoformat(),
        "commit": measured,
        "machine": machine(),
        "load_average": round(busy, 1),
        "settings": asdict(settings),
        "servers": {one.name: {"title": one.title, "settings": one.settings} for one in servers},
        "absent": absent,
        "model_alone_us": {str(size): round(_alone_us(size), 1) for size in (1, 16, 64)},
        "lesson": lesson.run() if not settings.only else {},
    }
    unfinished.finish()
    return Results(about, unfinished.measurements)


def _chosen(settings: Settings) -> list[Server]:
    servers = all_servers(settings.frontend_workers)
    known = [server.name for server in servers]
    if unknown := set(settings.only) - set(known):
        raise SystemExit(f"There is no server {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    return [server for server in servers if not settings.only or server.name in settings.only]


def _keys(
    server: Server, encoding: Encoding, number: int, settings: Settings
) -> tuple[dict[Key, int], dict[Key, float]]:
    """Return the closed loops with their numbers of clients, and the open loops with their shares."""
    wanted = [clients for clients in settings.clients if clients >= 32 or server.name != "unbatched"]
    closed = {Key(number, server.name, encoding.name, f"{clients} clients"): clients for clients in wanted}
    if encoding.name == "gRPC" or server.name == "unbatched":
        return closed, {}  # open loops would show the same as over HTTP, and the run would take longer
    return closed, {Key(number, server.name, encoding.name, f"{share:.0%} load"): share for share in SHARES}


def _missing(server: Server, number: int, settings: Settings, unfinished: Unfinished) -> list[Encoding]:
    def complete(encoding: Encoding) -> bool:
        closed, opened = _keys(server, encoding, number, settings)
        return all(key in unfinished for key in (*closed, *opened))

    return [encoding for encoding in server.encodings if not complete(encoding)]


def _turn(server: Server, number: int, settings: Settings, unfinished: Unfinished, expected: np.ndarray) -> None:
    with server.start() as running:
        for encoding in server.encodings:
            check(running, encoding, expected)
        _warm_up(running, server, settings)
        for encoding in _missing(server, number, settings, unfinished):
            closed, opened = _keys(server, encoding, number, settings)
            capacity = 0.0
            for key, clients in closed.items():
                one = measure.closed(key, running, encoding.request, clients, settings.seconds)
                unfinished.add(one)
                capacity = max(capacity, one.per_second)
            for key, share in opened.items():
                per_second = max(share * capacity, 1.0)
                unfinished.add(measure.opened(key, running, encoding.request, per_second, settings.seconds))


def _warm_up(running: Running, server: Server, settings: Settings) -> None:
    """Load the server as in the measurements: Java compiles code that runs often, and adaptive batching learns."""
    key = Key(0, server.name, "warm-up", "32 clients")
    measure.closed(key, running, server.encodings[0].request, 32, settings.warm_up_s)


def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = write(REPOSITORY, ["mlp"]) / "mlp" / "1" / "model.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def expected_numbers() -> np.ndarray:
    """Return the output of the model for the row that every server gets."""
    return np.asarray(_session().run(None, inputs("mlp"))[0]).reshape(-1)


def _alone_us(batch_size: int, seconds: float = 1.0) -> float:
    """Return the microseconds that the model needs for one row in batches of this size, in this process, on one thread."""
    session = _session()
    rows = np.repeat(inputs("mlp")["input"], batch_size, axis=0)
    count = 0
    start = time.process_time()
    while time.process_time() - start < seconds:
        session.run(None, {"input": rows})
        count += batch_size
    return (time.process_time() - start) * 1e6 / count
