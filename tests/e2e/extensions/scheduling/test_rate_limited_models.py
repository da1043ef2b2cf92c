"""Models that share one resource of the rate limiter: whatever becomes of those that wait, the others go on."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest

from tests.e2e.extensions.clients import PROTOCOLS, Calls, calls_to, client_of, pending_requests
from tests.e2e.gated_model import GatedModel
from tests.support.model_factory import python_model, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
GROUP = 'instance_group { count: %d kind: KIND_CPU rate_limiter { resources { name: "R" count: 1 } priority: %d } }'


def _recording_model(repository: Path, folder: Path, name: str, priority: int) -> None:
    """A model that writes its name into a file that all of them share, whenever it executes."""
    source = f"""
        import pathlib
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                with pathlib.Path({str(folder / "ran")!r}).open("a") as ran:
                    ran.write("{name}\\n")
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]
    """
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    config = f'name: "{name}" backend: "python" max_batch_size: 1 {tensors} {GROUP % (1, priority)}'
    python_model(repository, name, source, config)


class Setting(NamedTuple):
    server: ServerProcess
    holder: GatedModel
    folder: Path


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    repository, folder = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("gates")
    holder = GatedModel(repository, folder, "holder", extra=GROUP % (1, 1))
    GatedModel(repository, folder, "several", extra=GROUP % (2, 1)).open()
    GatedModel(repository, folder, "other", extra=GROUP % (1, 1)).open()
    _recording_model(repository, folder, "often", priority=1)
    _recording_model(repository, folder, "seldom", priority=2)
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:1", "--model-control-mode=explicit")
    with ServerProcess(repository, *flags, "--load-model=*") as server:
        yield Setting(server, holder, folder)
        assert "Traceback" not in server.log


@pytest.fixture
def setting(running: Setting) -> Iterator[Setting]:
    """`holder` executes a request of ours, and so has the only copy of the resource, until it is opened."""
    with calls_to(running.server, "http") as calls:
        held = calls.begin("holder", ONE, request_id="held")
        running.holder.wait_for("held")
        try:
            yield running
        finally:
            running.holder.open()
            held.result(PATIENCE_S)
    running.holder.shut()


def _answers(calls: Calls, *models: str) -> None:
    """Each model answers a request, one after the other."""
    for model in models:
        assert calls.begin(model, ONE, request_id=model).result(PATIENCE_S).id == model


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_an_instance_that_another_of_its_model_has_served_keeps_nobody_waiting(setting: Setting, kind: str) -> None:
    """Both instances of `several` wait for one request; one executes it, and the other needs nothing any more."""
    with calls_to(setting.server, kind) as calls:
        waiting = calls.begin("several", ONE, 1, request_id="waiting")
        setting.holder.open()
        assert waiting.result(PATIENCE_S).id == "waiting"
        _answers(calls, "holder", "holder", "other", "holder", "several", "holder")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_client_that_goes_away_keeps_nobody_waiting(setting: Setting, kind: str) -> None:
    server, holder, _ = setting
    with calls_to(server, kind) as calls:
        if kind == "grpc":
            leaving = ExitStack()
            client = leaving.enter_context(client_of(server, "grpc"))
            call = client.client.async_infer("other", client.tensors(ONE), callback=lambda result, error: None)
            wait_until(lambda: pending_requests(server, "other") == 1, what="the request in the queue")
            call.cancel()
        else:
            leaving = ExitStack()
            address = f"{server.http_url}/v2/models/other/infer"
            body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(address, json=body, timeout=httpx.Timeout(PATIENCE_S, read=1))
        wait_until(lambda: pending_requests(server, "other") == 0, what="an empty queue")
        waiting = calls.begin("several", ONE, 1, request_id="waiting")
        holder.open()
        assert waiting.result(PATIENCE_S).id == "waiting"
        _answers(calls, "holder", "several", "holder", "other", "holder")
        leaving.close()


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_models_of_unequal_priorities_share_the_resource_by_them(setting: Setting, kind: str) -> None:
    server, holder, folder = setting
    ran = folder / "ran"
    ran.unlink(missing_ok=True)
    with calls_to(server, kind) as calls:
        waiting = [calls.begin(model, ONE) for model in ["seldom", "often"] * 6]
        wait_until(
            lambda: pending_requests(server, "often") == pending_requests(server, "seldom") == 6, what="full queues"
        )
        holder.open()
        for call in waiting:
            call.result(PATIENCE_S)
    assert 5 <= ran.read_text().splitlines()[:9].count("often") <= 6


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_model_that_is_reloaded_or_unloaded_while_it_waits_keeps_nobody_waiting(setting: Setting, kind: str) -> None:
    server, holder, _ = setting
    with calls_to(server, kind) as calls, client_of(server, kind) as client:
        first = calls.begin("several", ONE, 1, request_id="first")
        config = client.described("get_model_config", "several")
        config["instance_group"][0]["count"] = 1  # takes one of its waiting instances away
        client.call("load_model", "several", config=json.dumps(config))
        other = calls.begin("other", ONE, 1, request_id="other")
        client.call("unload_model", "other")
        holder.open()
        assert [call.result(PATIENCE_S).id for call in (first, other)] == ["first", "other"]
        client.call("load_model", "several")
        client.call("load_model", "other")
        _answers(calls, "holder", "several", "other", "holder", "several", "other", "holder")


CALLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                asked = pb_utils.InferenceRequest(
                    model_name="called", requested_output_names=["OUTPUT0"], inputs=request.inputs()
                )
                answer = asked.exec()
                assert not answer.has_error(), answer.error().message()
                answers.append(pb_utils.InferenceResponse(answer.output_tensors()))
            return answers
"""


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_a_model_that_calls_another_and_one_that_needs_all_copies_are_all_answered(tmp_path: Path, kind: str) -> None:
    """Copies are kept for `larger`, but not those without which `caller` would never give back its own."""
    repository = tmp_path / "models"
    (tmp_path / "gates").mkdir()
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    config = f'name: "caller" backend: "python" max_batch_size: 1 {tensors} {GROUP % (1, 1)}'
    python_model(repository, "caller", CALLER, config)
    GatedModel(repository, tmp_path / "gates", "called", extra=GROUP % (1, 1)).open()
    larger = GROUP.replace("count: 1", "count: 2") % (1, 1)
    GatedModel(repository, tmp_path / "gates", "larger", extra=larger).open()
    flags = ("--rate-limit=execution_count", "--rate-limit-resource=R:2")
    with ServerProcess(repository, *flags) as server, calls_to(server, kind) as calls:
        waiting = [calls.begin(model, ONE) for model in ["called", "caller", "larger"] * 10]
        for call in waiting:
            call.result(PATIENCE_S)
