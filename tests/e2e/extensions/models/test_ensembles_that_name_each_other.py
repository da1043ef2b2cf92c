"""Ensembles whose configurations of load requests name each other: refused in one sentence, side by side and one by one."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.extensions.clients import PROTOCOLS, client_of
from tests.support import model_factory
from tests.support.pipelines import ensemble, step
from tests.support.serving_process import PATIENCE_S, ServerProcess

X = {"X": np.ones((1, 1), np.float32)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    _models(repository)
    with ServerProcess(repository, "--model-control-mode=explicit") as running:
        yield running
        assert "Traceback" not in running.log


def _models(repository: Path) -> None:
    model_factory.onnx_scale(repository, "double", 2.0)
    for name in ("one", "two", "three"):
        ensemble(repository, step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}), name)


def _of(name: str) -> str:
    """A configuration whose only step is the ensemble of that name."""
    tensor: dict[str, Any] = {"data_type": "TYPE_FP32", "dims": [1]}
    steps = [{"model_name": name, "model_version": -1, "input_map": {"X": "X"}, "output_map": {"Y": "Y"}}]
    return json.dumps(
        {
            "platform": "ensemble",
            "max_batch_size": 8,
            "input": [{"name": "X", **tensor}],
            "output": [{"name": "Y", **tensor}],
            "ensemble_scheduling": {"step": steps},
        }
    )


@pytest.fixture(autouse=True)
def _unloaded(server: ServerProcess) -> Iterator[None]:
    yield
    with client_of(server, "http") as client:
        for name in ("one", "two", "three"):
            client.call("unload_model", name)


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("names", [("one", "two"), ("one", "two", "three")], ids=["two", "a ring of three"])
def test_loads_side_by_side_end_and_not_all_of_them_serve(
    server: ServerProcess, kind: str, names: tuple[str, ...]
) -> None:
    begin = Barrier(len(names))

    def load(name: str, of: str) -> InferenceServerException | None:
        with client_of(server, kind) as client:
            begin.wait(PATIENCE_S)
            try:
                client.call("load_model", name, config=_of(of))
            except InferenceServerException as error:
                return error
            return None

    with ThreadPoolExecutor(len(names)) as threads, client_of(server, kind) as client:
        for _ in range(5):
            loads = [threads.submit(load, name, of) for name, of in zip(names, names[1:] + names[:1], strict=True)]
            refused = [error for one in loads if (error := one.result(PATIENCE_S))]
            assert refused
            for error in refused:
                assert error.status() == client.status("INVALID_ARG")
                assert "contains itself, by way of" in error.message()
            for name in names:
                client.call("load_model", name)
                client.call("unload_model", name)


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_the_one_that_is_loaded_later_is_refused_and_the_others_serve(server: ServerProcess, kind: str) -> None:
    with client_of(server, kind) as client:
        client.call("load_model", "one", config=_of("two"))
        assert client.infer("one", X).outputs["Y"].tolist() == [[2.0]]
        with pytest.raises(InferenceServerException) as caught:
            client.call("load_model", "two", config=_of("one"))
        assert caught.value.status() == client.status("INVALID_ARG")
        assert "ensemble 'two' contains itself, by way of 'one'" in caught.value.message()
        assert client.infer("one", X).outputs["Y"].tolist() == [[2.0]]
        client.call("load_model", "two")
        client.call("load_model", "one", config=_of("two"))
        client.call("load_model", "three", config=_of("one"))
        assert client.infer("three", X).outputs["Y"].tolist() == [[2.0]]


def _nested(repository: Path, name: str, count: int) -> None:
    """Ensembles each of which is the only step of the one before; the last one doubles."""
    ensemble(repository, step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}), f"{name}{count - 1}")
    for number in range(count - 1):
        ensemble(repository, step(f"{name}{number + 1}", {"X": "X"}, {"Y": "Y"}), f"{name}{number}")


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("nested")
    model_factory.onnx_scale(repository, "double", 2.0)
    _nested(repository, "level", 40)
    _nested(repository, "other", 20)
    with ServerProcess(repository, "--model-control-mode=explicit") as running:
        yield running
        assert "Traceback" not in running.log


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_ensembles_that_are_nested_too_deep_are_refused_and_others_answer(nested: ServerProcess, kind: str) -> None:
    """A request goes through all levels at once: with 150 it ended in a RecursionError, and the model below never answered
    again."""
    with client_of(nested, kind) as client:
        for name in ("level0", "level7"):  # 40 and 33
            with pytest.raises(InferenceServerException, match="nested more than 32 levels deep") as caught:
                client.call("load_model", name)
            assert caught.value.status() == client.status("INVALID_ARG")
        client.call("load_model", "level8")
        for _ in range(2):
            assert client.infer("level8", X).outputs["Y"].tolist() == [[2.0]]


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_an_ensemble_that_is_loaded_again_counts_the_levels_above_it(nested: ServerProcess, kind: str) -> None:
    with client_of(nested, kind) as client:
        client.call("load_model", "level8")
        with pytest.raises(InferenceServerException, match="nested more than 32 levels deep"):
            client.call("load_model", "level20", config=_of("other0"))
        assert client.infer("level8", X).outputs["Y"].tolist() == [[2.0]]
        client.call("load_model", "level20", config=_of("other5"))
        assert client.infer("level8", X).outputs["Y"].tolist() == [[2.0]]
        client.call("unload_model", "level20")
        client.call("load_model", "level20")  # as its files have it
