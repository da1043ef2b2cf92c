"""Errors of futures for which several wait: each gets one of its own, which says as much as the first."""

import asyncio
import traceback

import pytest

from serving.core.errors import StepFailed, invalid, outcome_of, without_traceback

PYTHONS = [
    UnicodeEncodeError("idna", "a..b", 1, 2, "label empty"),
    FileNotFoundError(2, "No such file or directory", "model.onnx"),
    KeyError("name"),
]


@pytest.mark.parametrize("error", PYTHONS, ids=lambda error: type(error).__name__)
def test_an_error_without_a_traceback_says_the_same(error: Exception) -> None:
    fresh = without_traceback(error)
    assert fresh is not error
    assert (type(fresh), str(fresh)) == (type(error), str(error))


def test_a_serving_error_keeps_its_code_and_its_other_fields() -> None:
    failed = StepFailed("pipeline", "double", invalid("wrong"))
    assert (without_traceback(failed).code, without_traceback(failed).message) == (failed.code, failed.message)
    assert without_traceback(failed).__dict__ == failed.__dict__


@pytest.mark.asyncio
async def test_the_log_can_say_where_a_shared_error_came_from() -> None:
    async def where_it_happened() -> None:
        raise KeyError("name")

    task = asyncio.get_running_loop().create_task(where_it_happened())
    for _ in range(2):
        with pytest.raises(KeyError) as caught:
            await outcome_of(task)
        assert "in where_it_happened" in "".join(traceback.format_exception(caught.value))
