"""Ragged batching: requests of unequal shapes in one batch, and the batch inputs that tell the model where each begins."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.extensions.clients import PROTOCOLS, calls_to, client_of
from tests.support.ragged_model import KINDS, ragged
from tests.support.serving_process import PATIENCE_S, ServerProcess

SIZES = (3, 4, 5)
# Three requests make the batch, however far apart they arrive.
BATCHING = "dynamic_batching { preferred_batch_size: [3] max_queue_delay_microseconds: 60000000 }"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    for kind in KINDS:
        ragged(repository, kind, kind.lower(), BATCHING)
    with ServerProcess(repository) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", KINDS)
def test_unequal_requests_share_a_batch_and_each_gets_its_own_part_back(
    server: ServerProcess, kind: str, protocol: str
) -> None:
    model = kind.lower()
    arrays = [np.arange(size, dtype=np.float32).reshape(1, size) + size for size in SIZES]
    with calls_to(server, protocol) as calls, client_of(server, protocol) as client:
        row = {"ROWS": np.zeros((1, 1), np.float32)}
        waiting = [calls.begin(model, {"IN": array} | row, number) for number, array in enumerate(arrays[:2], 1)]
        last = client.infer(model, {"IN": arrays[2]} | row)
        for array, answer in zip(arrays, [*(call.result(PATIENCE_S) for call in waiting), last], strict=True):
            np.testing.assert_array_equal(answer.outputs["VALUES"], array)
            assert answer.outputs["SEEN"].ravel().tolist() == KINDS[kind]
        (statistics,) = client.described("get_inference_statistics", model)["model_stats"]
        assert [int(batch["batch_size"]) for batch in statistics["batch_stats"]] == [3]
