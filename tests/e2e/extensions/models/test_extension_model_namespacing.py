"""`--model-namespacing`: models of one name in two repositories. What Triton's own tests of it ask, over both protocols."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.support.model_factory import onnx_scale, pass_on_ensemble, python_model, tensors_text
from tests.support.serving_process import ServerProcess, wait_until

TENSORS = tensors_text("input", [("INPUT0", "FP32", [-1])]) + tensors_text("output", [("OUTPUT0", "FP32", [-1])])
BLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            tensor = pb_utils.Tensor("INPUT0", requests[0].inputs()[0].as_numpy())
            asked = pb_utils.InferenceRequest(model_name="part", requested_output_names=["OUTPUT0"], inputs=[tensor])
            answer = asked.exec()
            if answer.has_error():
                return [pb_utils.InferenceResponse([], answer.error())]
            return [pb_utils.InferenceResponse(answer.output_tensors())]
"""


class Site:
    """A server on two repositories. "twice" and "pair" are ensembles of "part", which doubles in the first, triples in the
    second; each has an ensemble "same", too."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.repositories = [folder / "first", folder / "second"]
        for repository, name, factor in zip(self.repositories, ("twice", "thrice"), (2.0, 3.0), strict=True):
            onnx_scale(repository, "part", factor, max_batch_size=4)
            pass_on_ensemble(repository, name, "part")
            pass_on_ensemble(repository, "same", "part")
        python_model(self.repositories[0], "asks", BLS, f'name: "asks" backend: "python" max_batch_size: 4 {TENSORS}')
        self.server = ServerProcess(self.repositories, "--model-namespacing=true", *flags)

    def factor(self, model: str, protocol: str = "http") -> float:
        """What a model multiplies by."""
        client = httpclient if protocol == "http" else grpcclient
        tensor = client.InferInput("INPUT0", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with client.InferenceServerClient(self.server.http if protocol == "http" else self.server.grpc) as asked:
            return float(asked.infer(model, [tensor]).as_numpy("OUTPUT0")[0, 0])

    def ambiguous(self, model: str) -> bool:
        try:
            self.factor(model)
        except InferenceServerException as error:
            return "ambiguity" in error.message()
        return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Where everything is loaded."""
    site = Site(tmp_path_factory.mktemp("namespaces"))
    with site.server:
        yield site


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_an_ensemble_calls_the_model_of_its_own_repository(site: Site, protocol: str) -> None:
    assert (site.factor("twice", protocol), site.factor("thrice", protocol)) == (2.0, 3.0)


@pytest.mark.parametrize("model", ["part", "same"])
def test_a_request_to_a_name_of_two_models_is_the_clients_mistake(site: Site, model: str) -> None:
    with pytest.raises(InferenceServerException, match=r"2 models named.*ambiguity") as caught:
        site.factor(model, "grpc")
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(InferenceServerException, match=r"2 models named.*ambiguity") as caught:
        site.factor(model)
    assert caught.value.status() == "400"
    assert str(site.repositories[0].parent) not in str(caught.value)


def test_an_ambiguous_name_is_not_ready_and_has_no_metadata_configuration_or_statistics(site: Site) -> None:
    with grpcclient.InferenceServerClient(site.server.grpc) as client:
        assert client.is_server_ready()
        assert not client.is_model_ready("part")
        assert client.is_model_ready("twice")
        for asked in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
            with pytest.raises(InferenceServerException, match="ambiguity"):
                asked("part")


def test_a_python_model_that_asks_for_an_ambiguous_name_is_told_so(site: Site) -> None:
    assert site.ambiguous("asks")


def test_the_index_and_the_statistics_list_both(site: Site) -> None:
    site.factor("twice")
    site.factor("thrice")
    with grpcclient.InferenceServerClient(site.server.grpc) as client:
        rows = [(row.name, row.version, row.state) for row in client.get_model_repository_index().models]
        names = [row.name for row in client.get_inference_statistics().model_stats]
        [twice] = client.get_inference_statistics("twice").model_stats
    assert rows.count(("part", "1", "READY")) == rows.count(("same", "1", "READY")) == 2
    assert (names.count("part"), names.count("twice")) == (2, 1)
    assert twice.inference_stats.success.count >= 1


def test_metrics_and_the_live_feed_name_the_namespace(site: Site) -> None:
    metrics = httpx.get(site.server.metrics_url, timeout=60).text
    for repository in site.repositories:
        assert f'nv_inference_count{{model="part",namespace="{repository}",version="1"}}' in metrics
    with httpx.stream("GET", f"http://{site.server.metrics}/v2/slipway/live", timeout=60) as stream:
        stats = next(line for line in stream.iter_lines() if line.startswith('data: {"time"'))
    assert all(f'"name":"part","version":"1","namespace":"{repository}"' in stats for repository in site.repositories)


def test_what_a_step_means_follows_what_is_loaded_by_name(tmp_path: Path) -> None:
    site = Site(tmp_path, "--model-control-mode=explicit")
    aside = tmp_path / "aside"
    shutil.move(site.repositories[0] / "part", aside)
    with site.server, httpclient.InferenceServerClient(site.server.http) as client:
        for name in ("twice", "thrice"):
            client.load_model(name)
        assert [site.factor(name) for name in ("twice", "thrice", "part")] == [3.0, 3.0, 3.0]
        shutil.move(aside, site.repositories[0] / "part")
        client.load_model("twice")
        assert (site.factor("twice"), site.factor("thrice")) == (2.0, 3.0)
        assert site.ambiguous("part")
        client.unload_model("twice", unload_dependents=True)
        assert site.factor("part") == 3.0, "only the other one is left"
        client.unload_model("part")
        with pytest.raises(InferenceServerException, match="part"):
            site.factor("thrice")
        client.load_model("same")
        assert site.ambiguous("same")
        assert site.ambiguous("part"), "each ensemble has loaded its own"


def test_polling_follows_a_model_that_leaves_one_repository_and_comes_back(tmp_path: Path) -> None:
    site = Site(tmp_path, "--model-control-mode=poll", "--repository-poll-secs=0.1")
    aside = tmp_path / "aside"
    with site.server:
        assert site.ambiguous("part")
        shutil.move(site.repositories[0] / "part", aside)
        wait_until(lambda: not site.ambiguous("part"), what="the end of the ambiguity")
        assert [site.factor(name) for name in ("twice", "thrice", "part")] == [3.0, 3.0, 3.0]
        shutil.move(aside, site.repositories[0] / "part")
        wait_until(lambda: site.factor("twice") == 2.0, what="the model of the ensemble's own repository")
        assert site.ambiguous("part")
        assert site.factor("thrice") == 3.0


def test_a_step_that_only_several_other_repositories_have_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, "--model-control-mode=explicit")
    pass_on_ensemble(tmp_path / "third", "far", "part")
    site.server.repositories.append(tmp_path / "third")
    with site.server, httpclient.InferenceServerClient(site.server.http) as client:
        with pytest.raises(InferenceServerException, match=r"2 models named 'part'.*ambiguity"):
            client.load_model("far")
        shutil.rmtree(site.repositories[1] / "part")
        client.load_model("far")
        assert site.factor("far") == 2.0
