"""The dynamic batcher with the stock clients: requests of several clients in one batch, and answers in their order."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.e2e.extensions.clients import PROTOCOLS, calls_to, client_of, stream_of
from tests.e2e.gated_model import GatedModel
from tests.support.serving_process import PATIENCE_S, ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
BATCHING = "instance_group { count: 1 } dynamic_batching { %s }"


class Setting(NamedTuple):
    server: ServerProcess
    gates: dict[str, GatedModel]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gates")
    settings = {
        "batched": BATCHING % "",
        "preferring": BATCHING % "preferred_batch_size: [2]",
        "ordered": BATCHING.replace("count: 1", "count: 2") % "preserve_ordering: true",
        "unbatched": "instance_group { count: 1 }",
    }
    gates = {name: GatedModel(repository, folder, name, 4, extra) for name, extra in settings.items()}
    with ServerProcess(repository) as server:
        yield Setting(server, gates)
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize(
    ("model", "sizes"), [("batched", [1, 4]), ("preferring", [1, 2, 2]), ("unbatched", [1, 1, 1, 1, 1])]
)
def test_requests_that_wait_together_run_together(setting: Setting, kind: str, model: str, sizes: list[int]) -> None:
    gate = setting.gates[model]
    with calls_to(setting.server, kind) as calls, client_of(setting.server, kind) as client:
        before = batches(client.described("get_inference_statistics", model))
        try:
            waiting = [calls.begin(model, ONE, request_id="0")]
            gate.wait_for("0")
            waiting += [calls.begin(model, ONE, number, request_id=str(number)) for number in range(1, 5)]
        finally:
            gate.open()
        assert [call.result(PATIENCE_S).id for call in waiting] == ["0", "1", "2", "3", "4"]
        after = batches(client.described("get_inference_statistics", model))
        assert {size: after[size] - before.get(size, 0) for size in after} == {s: sizes.count(s) for s in set(sizes)}
    gate.shut()


def batches(statistics: dict[str, Any]) -> dict[int, int]:
    """Batch size -> executions."""
    (row,) = statistics["model_stats"]
    return {int(batch["batch_size"]): int(batch["compute_infer"]["count"]) for batch in row.get("batch_stats", [])}


def test_preserve_ordering_holds_for_requests_of_one_stream(setting: Setting) -> None:
    gate = setting.gates["ordered"]
    with stream_of(setting.server) as stream:
        gate.open()
        for number in range(20):
            stream.send("ordered", ONE, request_id=str(number))
        assert [stream.next().get_response().id for _ in range(20)] == [str(number) for number in range(20)]
