"""Compares Slipway with NVIDIA's Triton, case by case: each case is measured on one server and then on the other. Both servers
run all the time, because they use no CPU while idle."""

import os
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date

from benchmarks.comparison import measure
from benchmarks.comparison.encodings import answer
from benchmarks.comparison.measure import order
from benchmarks.comparison.record import Key, Results, Unfinished
from benchmarks.folders import CACHE, REPOSITORY
from benchmarks.machine import commit, machine
from benchmarks.servers import models, process
from dashboard.loads.requests import Request, v2_binary, v2_grpc, v2_json


@dataclass(frozen=True)
class Settings:
    """seconds: the duration of each measurement. only: a text that the name of a case must contain. frontend_workers: if not 0,
    a Slipway with this number of frontend workers is measured, too."""

    rounds: int = 3
    seconds: int = 3
    only: str = ""
    frontend_workers: int = 0


QUICK = Settings(rounds=1, seconds=1)


@dataclass(frozen=True)
class Case:
    """A model, an encoding and a number of clients. target: Slipway's intended throughput, as a multiple of Triton's."""

    model: str
    encoding: str
    clients: int
    target: float

    @property
    def name(self) -> str:
        return f"{self.model}, {self.encoding}"

    @property
    def load(self) -> str:
        return f"{self.clients} clients"

    def request(self) -> Request:
        tensors = models.inputs(self.loads, SIZES.get(self.model.partition(OF)[2]))
        return {"binary": v2_binary, "JSON": v2_json, "gRPC": v2_grpc}[self.encoding](self.loads, tensors)

    @property
    def loads(self) -> str:
        """The name of the requested model in the repository."""
        return self.model.partition(OF)[0]

    @property
    def interpreted(self) -> bool:
        """Return whether Slipway is measured without compiled modules, too."""
        return self.loads in ("simple", "identity") and self.encoding != "gRPC"


OF = " of "
SIZES = {"16 numbers": 16, "1 MB": 1 << 18}  # FP32 values in a request to an identity model; 1,024 if not in its title
CASES = [
    Case(model, encoding, clients, target)
    for model, encoding, at, target in [
        ("simple", "binary", (1, 8, 32, 128), 1.0),
        ("simple", "JSON", (1, 32), 1.0),
        ("simple", "gRPC", (1, 8, 32), 1.0),
        ("identity", "binary", (32,), 1.0),
        ("identity", "gRPC", (32,), 1.0),
        (f"python{OF}16 numbers", "binary", (1, 16), 1.1),
        (f"python{OF}16 numbers", "gRPC", (1, 16), 1.1),
        ("python", "binary", (1, 16), 1.1),
        ("python", "gRPC", (1, 16), 1.1),
        (f"python_batched{OF}16 numbers", "binary", (16,), 1.1),
        ("python_batched", "binary", (16,), 1.1),
        ("python_batched", "gRPC", (16,), 1.1),
        ("mlp_delay", "binary", (8, 32, 128), 1.1),
        ("mlp_delay", "JSON", (32,), 1.1),
        ("mlp_delay", "gRPC", (8, 32, 128), 1.1),
        ("mlp", "binary", (1, 8, 32, 128), 1.1),
        (f"identity{OF}1 MB", "binary", (8,), 1.4),
        (f"identity{OF}1 MB", "gRPC", (8,), 1.2),
        ("bert", "binary", (32,), 1.0),
        ("bert", "gRPC", (32,), 1.0),
    ]
    for clients in at
]


def run(settings: Settings) -> Results:
    """Measure every case in every round; after an interrupted run, only the missing measurements."""
    cases = [case for case in CASES if settings.only in f"{case.name}, {case.load}"]
    loaded = sorted({case.loads for case in cases})
    repository = models.write(REPOSITORY, loaded)
    measured = commit()
    unfinished = Unfinished(CACHE / "triton.jsonl", asdict(settings) | {"commit": measured})
    about = {
        "date": date.today().isoformat(),
        "commit": measured,
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "settings": asdict(settings),
        "targets": {f"{case.name}, {case.load}": case.target for case in cases},
    }
    with ExitStack() as stack:
        running = {
            "triton": stack.enter_context(process.triton(repository, loaded)),
            "slipway": stack.enter_context(process.slipway(repository, loaded)),
            "interpreted": stack.enter_context(process.slipway(repository, loaded, compiled=False)),
        }
        if settings.frontend_workers:
            flag = f"--frontend-workers={settings.frontend_workers}"
            running["workers"] = stack.enter_context(process.slipway(repository, loaded, [flag]))
        for server in running.values():
            for case in cases:
                answer(server, case.request())
        for number in range(1, settings.rounds + 1):
            for case in cases:
                for name in order([name for name in running if name != "interpreted" or case.interpreted], number):
                    key = Key(number, name, case.name, case.load)
                    if key not in unfinished:
                        one = measure.closed(key, running[name], case.request(), case.clients, settings.seconds)
                        unfinished.add(one)
    unfinished.finish()
    return Results(about, unfinished.measurements)
