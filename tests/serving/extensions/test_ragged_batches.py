"""Requests of unequal shapes in one batch, and the batch inputs that describe them."""

import asyncio

import numpy as np
import pytest

from tests.serving.in_process import core, infer
from tests.support.ragged_model import KINDS, ragged

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("kind", KINDS)
async def test_unequal_requests_share_a_batch_and_each_gets_its_own_part_back(tmp_path, kind):
    ragged(tmp_path, kind)
    async with core(tmp_path, load_model=("ragged",)) as server:
        arrays = [np.arange(size, dtype=np.float32).reshape(1, size) + size for size in (3, 4, 5)]
        calls = [infer(server, "ragged", {"IN": a, "ROWS": np.zeros((1, 1), np.float32)}) for a in arrays]
        answers = await asyncio.gather(*calls)
        for array, answer in zip(arrays, answers, strict=True):
            np.testing.assert_array_equal(answer["VALUES"], array)
            assert answer["SEEN"].ravel().tolist() == KINDS[kind]
        assert {row.batch_size for row in server.model_statistics("ragged").model_stats[0].batch_stats} == {3}


async def test_a_request_alone_is_joined_the_same_way(tmp_path):
    ragged(tmp_path, "BATCH_ACCUMULATED_ELEMENT_COUNT")
    async with core(tmp_path, load_model=("ragged",)) as server:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        answer = await infer(server, "ragged", {"IN": array, "ROWS": np.zeros((2, 1), np.float32)})
        np.testing.assert_array_equal(answer["VALUES"], array)
        assert answer["SEEN"].tolist() == [[6.0], [6.0]]
