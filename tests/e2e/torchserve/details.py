"""The last requests: models that cannot start, unusable settings, coroutines, V2's address with other bodies."""

from pathlib import Path

from tests.e2e.torchserve.asking import Ask
from tests.e2e.torchserve.management import manage
from tests.support.torchserve_archives import archive

NO_MEMORY = """
class Handler:
    def initialize(self, context):
        raise MemoryError("none is left")

    def handle(self, data, context):
        return data
"""
NO_GPU_MEMORY = NO_MEMORY.replace('MemoryError("none is left")', 'RuntimeError("CUDA out of memory")')
COROUTINE = """
import asyncio

class Handler:
    def initialize(self, context):
        self.lock = None

    async def handle(self, data, context):
        self.lock = self.lock or asyncio.Lock()  # of the loop on which the first batch ran
        async with self.lock:
            await asyncio.sleep(0.001)
        return [bytes(row["body"]).decode() + " later" for row in data]
"""
SHOWN = """
def handle(data, context):
    return data and [f"{type(row['body']).__name__} {row['body']}" for row in data]
"""
UNUSABLE = "minWorkers: x\nbatchSize: '3'\nmaxBatchDelay: true\nresponseTimeout: -5\ndeviceType: 7\nhandler: 3\n"
JSON = {"Content-Type": "application/json"}
NO_V2 = {
    "nothing": (b"", {}),
    "bytes": (b"\xff\x00", {}),
    "text": (b"hello", {"Content-Type": "text/plain"}),
    "other JSON": (b'{"a": 1}', JSON),
    "a list": (b"[1, 2]", JSON),
    "broken JSON": (b"{", JSON),
    "inputs that are a number": (b'{"inputs": 3}', JSON),
    "inputs without a datatype": (b'{"inputs": [{"name": "x", "shape": [1]}]}', JSON),
}


def write_archives(store: Path) -> None:
    archive(store / "no_memory.mar", handler=NO_MEMORY)
    archive(store / "no_gpu_memory.mar", handler=NO_GPU_MEMORY)
    archive(store / "coroutine.mar", handler=COROUTINE, config={"asyncCommunication": True})
    archive(store / "plain_coroutine.mar", handler=COROUTINE)
    archive(store / "raises.mar", handler="raise ValueError('no')")
    archive(store / "shown.mar", handler=SHOWN)
    for name, text in (("bad_yaml", "a: [1\nb: {"), ("bad_settings", UNUSABLE)):
        files = {"model-config.yaml": text}
        archive(store / f"{name}.mar", configFile="model-config.yaml", files=files, handler=SHOWN)


def _predict(title: str, model: str, repeat_s: float | None = None) -> Ask:
    return Ask(title, f"/predictions/{model}", b"hello", repeat_s=repeat_s)


ASKS = [
    manage("registering what finds no memory", "POST", "/models?url=no_memory.mar&initial_workers=1"),
    manage("registering what finds no memory of a GPU", "POST", "/models?url=no_gpu_memory.mar&initial_workers=1"),
    manage("registering what raises, without workers", "POST", "/models?url=raises.mar&initial_workers=0"),
    manage("scaling what raises", "PUT", "/models/raises?min_worker=1&synchronous=true"),
    manage("registering settings that cannot be used", "POST", "/models?url=bad_settings.mar&initial_workers=1"),
    _predict("a prediction with settings that cannot be used", "bad_settings"),
    manage("registering bad YAML without workers", "POST", "/models?url=bad_yaml.mar&initial_workers=0"),
    manage("scaling a model with invalid YAML", "PUT", "/models/bad_yaml?min_worker=1&synchronous=true"),
    manage("registering a coroutine", "POST", "/models?url=coroutine.mar&initial_workers=1"),
    _predict("a prediction of a coroutine", "coroutine", repeat_s=10),
    _predict("another prediction of a coroutine", "coroutine", repeat_s=10),
    manage("registering a plain coroutine", "POST", "/models?url=plain_coroutine.mar&initial_workers=1"),
    _predict("a prediction of a plain coroutine", "plain_coroutine"),
    manage(
        "registering with a startup timeout of 0",
        "POST",
        "/models?url=shown.mar&initial_workers=1&startup_timeout=0&model_name=hurried",
    ),
    manage("registering for V2's address", "POST", "/models?url=shown.mar&initial_workers=1"),
    *(
        Ask(f"V2's address: {title}", "/v2/models/shown/infer", body, headers)
        for title, (body, headers) in NO_V2.items()
    ),
    Ask("V2's address: another method", "/v2/models/shown/infer", method="GET"),
]
