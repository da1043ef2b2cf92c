"""Real artefacts go through recipe and check to a right answer of a real server, or are refused with one sentence."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import np_to_triton_dtype

from dashboard.conversions.check import compare
from dashboard.conversions.conversion import Conversion
from dashboard.conversions.recipes.table import RECIPES, recipes_for
from dashboard.conversions.results import converted_models
from dashboard.shared.exceptions import Invalid
from tests.dashboard.conversions.artefacts import CONVERTED, ENVIRONMENTS, REFUSED, Artefact, has_environment, source_of
from tests.support.serving_process import ServerProcess

pytestmark = [pytest.mark.conversions, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conversions")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    (folder / "repository").mkdir()
    with ServerProcess(folder / "repository", "--model-control-mode=explicit") as process:
        yield process


def begin(artefact: Artefact, folder: Path) -> Conversion:
    if artefact.made_in and not has_environment(artefact.made_in):
        pytest.skip(f"no environment '{artefact.made_in}': make test-conversions makes it")
    target = folder / "targets" / artefact.name
    conversion = Conversion(artefact.recipe, source_of(artefact, folder), target, artefact.options)
    if not has_environment(conversion.lock.name):
        pytest.skip(f"no environment '{conversion.lock.name}': make test-conversions makes it")
    return conversion


def run(conversion: Conversion) -> dict[str, Any]:
    return conversion.run(ENVIRONMENTS, lambda percent, step: None)


@pytest.mark.parametrize("artefact", CONVERTED, ids=lambda one: one.name)
def test_an_artefact_becomes_a_model_that_answers_as_its_source(
    artefact: Artefact, folder: Path, server: ServerProcess, record_property: Any
) -> None:
    conversion = begin(artefact, folder)
    lineage = run(conversion)
    difference = lineage["difference"]
    print(artefact.name, difference["maximum"], difference["mean"], difference["agreement"])
    assert (difference["sentence"], difference["caution"]) == ("", "")
    assert artefact.recipe in [one.name for one in recipes_for(conversion.source)]
    report = conversion.report()
    assert any(artefact.warns in one for one in report["warnings"]) if artefact.warns else report["warnings"] == []
    assert [one["sha256"] for one in lineage["source"]]
    assert lineage["command"].startswith(f"python -m dashboard.conversions {artefact.recipe} SOURCE TARGET")
    for name in publish(artefact.name, conversion.target, report, folder / "repository"):
        server_load(server, name)
    served = ask(server, artefact.name, conversion.target, report)
    with np.load(conversion.target / "answers.npz") as own:
        verdict = compare({name: own[name] for name in served}, served, report)
    assert verdict.sentence == ""


@pytest.mark.parametrize("artefact", REFUSED, ids=lambda one: one.name)
def test_a_source_that_cannot_be_converted_is_refused_in_one_sentence(artefact: Artefact, folder: Path) -> None:
    conversion = begin(artefact, folder)
    with pytest.raises(Invalid) as refused:
        run(conversion)
    assert artefact.words in refused.value.message
    assert "\n" not in refused.value.message


def test_a_recipe_that_is_wrong_is_refused_for_its_difference(folder: Path) -> None:
    conversion = begin(next(one for one in CONVERTED if one.name == "sklearn_pickle"), folder)
    conversion.target = folder / "targets" / "wrong"

    def spoilt(command: Any, variables: Any) -> tuple[int, str]:
        """Run the command, and write other weights into the recipe's model."""
        done = subprocess.run(command, env=variables, check=False)
        model = conversion.target / "model" / "model.onnx"
        if str(command[-1]).endswith("options.json"):
            import onnx

            graph = onnx.load(model)
            for node in graph.graph.node:
                for attribute in node.attribute:
                    if attribute.name == "coefficients":
                        attribute.floats[0] += 0.5
            onnx.save(graph, model)
        return done.returncode, ""

    with pytest.raises(
        Invalid, match=r"output 'variable' differs from the source's by [\d.]+ at most and [\d.]+ on average"
    ):
        conversion.run(ENVIRONMENTS, lambda percent, step: None, spoilt)


def test_the_command_of_a_lineage_converts_the_source_again(folder: Path) -> None:
    artefact = next(one for one in CONVERTED if one.name == "sklearn_pickle")
    conversion = begin(artefact, folder)
    source, target = str(conversion.source.folder), str(folder / "again")
    command = ["-m", "dashboard.conversions", artefact.recipe, source, target, "--environments", str(ENVIRONMENTS)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["recipe"]["name"] == "scikit_learn"


def test_every_recipe_has_an_artefact_that_becomes_a_model_and_its_environment_a_lock() -> None:
    on_gpu = {one.name for one in RECIPES if one.needs_gpu}  # tests/gpu has theirs
    assert {one.recipe for one in CONVERTED} == {one.name for one in RECIPES} - on_gpu


# -- the server --------------------------------------------------------------------------------------------------------
def publish(name: str, target: Path, report: dict[str, Any], repository: Path) -> list[str]:
    """Put the models of a conversion into the repository. Return their names, those that others need first."""
    models = converted_models(target, report, name)
    for one in models:
        folder = repository / one.name
        (folder / "1").mkdir(parents=True)
        for file, path in one.version.items():
            shutil.copy(path, folder / "1" / file)
        for file, path in one.beside.items():
            shutil.copy(path, folder / file)
        (folder / "config.pbtxt").write_text(one.config or inspected(folder / "1", one.name))
    return [one.name for one in models]


def inspected(version: Path, name: str) -> str:
    """Return the configuration that the inspection proposes."""
    command = [sys.executable, "-m", "serving.inspect", str(version), "--name", name]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [one for one in report["problems"] if one["severity"] == "error"] == []
    return str(report["config"])


def server_load(server: ServerProcess, name: str) -> None:
    with grpc.InferenceServerClient(server.grpc) as client:
        client.load_model(name)


def ask(server: ServerProcess, name: str, target: Path, report: dict[str, Any]) -> dict[str, np.ndarray]:
    """Send the samples to the server, as many rows at once as it takes. Return its answers to the outputs of the source."""
    with np.load(target / "samples.npz") as samples, np.load(target / "answers.npz") as own:
        inputs = {key: array.astype(object) if array.dtype.kind in "US" else array for key, array in samples.items()}
        outputs = list(own)
    rows = len(next(iter(inputs.values())))
    with grpc.InferenceServerClient(server.grpc) as client:
        most = client.get_model_config(name, as_json=True)["config"].get("max_batch_size") or rows
        parts = [
            infer(client, name, {key: array[at : at + most] for key, array in inputs.items()}, outputs)
            for at in range(0, rows, most)
        ]
    return {output: np.concatenate([part[output] for part in parts]) for output in outputs}


def infer(
    client: grpc.InferenceServerClient, name: str, inputs: dict[str, np.ndarray], outputs: list[str]
) -> dict[str, np.ndarray]:
    asked = []
    for key, array in inputs.items():
        kind = "BYTES" if array.dtype == object else np_to_triton_dtype(array.dtype)
        asked.append(grpc.InferInput(key, list(array.shape), kind).set_data_from_numpy(array))
    served = [one.name for one in client.get_model_metadata(name).outputs]
    answer, found = client.infer(name, asked), {}
    for at, output in enumerate(outputs):  # a .pt2 file has no names of outputs: the server numbers them
        array = answer.as_numpy(output if output in served else served[at])
        assert array is not None
        found[output] = np.vectorize(bytes.decode, otypes=[str])(array) if array.dtype == object else array
    return found
