"""The configuration that the advice prefers makes the queue of a real server shorter, for three shapes of traffic.

The model sleeps for a known time, so the advice is made from a simulation of the arrivals that are sent, and is the same on
every machine. `test_advice` asks how exact its figures are. A busy machine delays requests, so of the real server only the
direction is asked, for waits that differ by FACTOR in the simulation.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dashboard.advice.advice import advise
from dashboard.advice.candidates import setting_of
from dashboard.advice.simulation import ServiceTime
from dashboard.advice.traffic import Traffic
from dashboard.metrics.feed import FeedReader, follow_feed
from dashboard.metrics.usage import Usage, combine
from dashboard.models import Server
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.exceptions import DashboardError
from repository.config.document import Document
from tests.dashboard.advice.shapes import bursts, poisson, steady, traffic
from tests.serving.frontends.raw_http import build, infer_body, tensor
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

FACTOR = 1.5
REQUESTS = 450
CONNECTIONS = 64
SERVICE = ServiceTime(4e6, 3e5)  # of SOURCE
TEXT = """name: "m"
backend: "python"
max_batch_size: 16
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: 1 }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }}
instance_group {{ count: 1 kind: KIND_CPU }}
{}
"""
SOURCE = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
            time.sleep(0.004 + 0.0003 * len(requests))
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
REQUEST = build("POST", "/v2/models/m/infer", infer_body(tensor([1.0], [1, 1])))


@dataclass
class House:
    """A server with one model."""

    process: ServerProcess
    folder: Path

    def configure(self, document: Document) -> None:
        (self.folder / "m" / "config.pbtxt").write_text(document.text)
        assert self.process.post("/v2/repository/models/m/load")[0] == 200

    def meet(self, times: list[int]) -> Traffic:
        """Send requests at these times, and return the statistics of the feed."""
        return asyncio.run(self._meet(times))

    async def _meet(self, times: list[int]) -> Traffic:
        server = Server(name="s", http_url=self.process.http_url, metrics_url=f"http://{self.process.metrics}")
        seen: list[Usage] = []
        began = asyncio.Event()
        async with AsyncServerClient(server) as client:
            reading = asyncio.create_task(_read(client, seen, began, len(times)))
            await asyncio.wait_for(began.wait(), PATIENCE_S)
            await _send(self.process.http, times)
            await asyncio.wait_for(reading, PATIENCE_S)
        return Traffic(combine(seen), times[-1] / 1e9, cpu=0.2, cores=2)


async def _read(client: AsyncServerClient, seen: list[Usage], began: asyncio.Event, requests: int) -> None:
    """Collect the usage of the model until the feed has reported all requests."""
    async for tick in follow_feed(client, FeedReader()):
        if isinstance(tick, DashboardError):
            raise tick
        began.set()
        seen += [usage for (name, _), usage in tick.models.items() if name == "m"]
        if sum(usage.success for usage in seen) >= requests:
            return


async def _send(address: str, times: list[int]) -> None:
    """Send requests at their times, whether earlier ones are answered or not, on CONNECTIONS connections."""
    host, _, port = address.rpartition(":")
    idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        idle.put_nowait(await asyncio.open_connection(host, int(port)))
    loop = asyncio.get_running_loop()
    start = loop.time()

    async def ask(at_ns: int) -> None:
        await asyncio.sleep(start + at_ns / 1e9 - loop.time())
        reader, writer = await idle.get()
        writer.write(REQUEST)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200")
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        idle.put_nowait((reader, writer))

    await asyncio.gather(*map(ask, times))
    while not idle.empty():
        idle.get_nowait()[1].close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("models")
    model_factory.python_model(folder, "m", SOURCE, TEXT.format(""))
    with ServerProcess(folder, "--model-control-mode=explicit", "--load-model=m") as process:
        yield House(process, folder)


def waited_ms(found: Traffic) -> float:
    """Return the mean time of a request in the queue."""
    return found.usage.queue_ns / found.usage.queue_count / 1e6


@pytest.mark.parametrize(
    ("shape", "rate", "batching"),
    [
        (steady, 150, "dynamic_batching { max_queue_delay_microseconds: 40000 }"),
        (poisson, 150, "dynamic_batching { max_queue_delay_microseconds: 40000 }"),
        (bursts, 120, ""),
    ],
    ids=["steady", "poisson", "bursts"],
)
def test_the_advised_configuration_shortens_the_queue(
    house: House, shape: Callable[[float, int], list[int]], rate: float, batching: str
) -> None:
    present = Document.read(TEXT.format(batching))
    advice = advise(traffic(shape(rate, 4000), setting_of(present), SERVICE), present).advice
    assert advice is not None
    times = shape(rate, REQUESTS)
    simulated = [waited_ms(traffic(times, setting_of(one), SERVICE)) for one in (present, advice.document)]
    assert simulated[0] > FACTOR * simulated[1]
    advised = advice.document

    def met(document: Document) -> float:
        house.configure(document)
        found = house.meet(times)
        assert sum(rows * count for rows, count in found.usage.batches.items()) == REQUESTS
        assert found.usage.batch_ns.keys() == found.usage.batches.keys()
        assert 0 < sum(found.usage.gaps.values()) <= REQUESTS  # the first one is since the last run
        return waited_ms(found)

    # Other processes of the machine may take the time of one of the two.
    wait_until(lambda: met(advised) < met(present), what="a shorter queue")
