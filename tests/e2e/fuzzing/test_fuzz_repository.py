"""Repository control in any order, against a model of what must be ready: never a 500, a hang or a wrong answer."""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.e2e.fuzzing.inputs import sound
from tests.serving.frontends.raw_http import infer_body, tensor
from tests.support import model_factory
from tests.support.exploring import run_machine
from tests.support.pipelines import ensemble, step
from tests.support.serving_process import ServerProcess

KEPT = "kept"
# name -> how a version of it is written
KINDS = {"first": model_factory.onnx_scale, "second": model_factory.onnx_scale, "script": model_factory.python_scale}
PIPELINE = "pipeline"  # an ensemble of `first` and `second`
names = st.sampled_from([*KINDS, PIPELINE])
writable = st.sampled_from(sorted(KINDS))
versions = st.integers(1, 3)
POLICIES = ["", "version_policy { all { } }", "version_policy { latest { num_versions: 2 } }"]
BATCHING = ["", "dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 1000 }"]
INSTANCES = ["instance_group { count: 1 kind: KIND_CPU }", "instance_group { count: 2 kind: KIND_CPU }"]
extras = st.builds(" ".join, st.tuples(*map(st.sampled_from, (POLICIES, BATCHING, INSTANCES))))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("fuzz") / "models"
    model_factory.onnx_scale(repository, KEPT)
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    flags = ("--model-control-mode=explicit", f"--load-model={KEPT}")
    with ServerProcess(repository, *flags, "--log-info=false") as server, sound(server):
        yield server


class Control(RuleBasedStateMachine):
    """`ready`: model -> the factors that may answer, since its last load that succeeded."""

    server: ClassVar[ServerProcess]
    repository: ClassVar[Path]

    @initialize()
    def begin(self) -> None:
        self.written: dict[str, dict[int, float]] = {}
        self.ready: set[str] = set()
        self.ever: dict[str, set[float]] = {name: set() for name in KINDS}
        for name in (PIPELINE, *KINDS):
            self.post(f"/v2/repository/models/{name}/unload", {"parameters": {"unload_dependents": True}})
            shutil.rmtree(self.repository / name, ignore_errors=True)
        steps = step("first", {"INPUT0": "X"}, {"OUTPUT0": "m"}) + step("second", {"INPUT0": "m"}, {"OUTPUT0": "Y"})
        ensemble(self.repository, steps, PIPELINE)

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, said = self.server.post(path, body)
        assert status < 500 or status == 503, (path, status, said)
        if status != 200:
            assert isinstance(said["error"], str), said
            assert str(self.repository) not in said["error"]
        return status, said

    # -- files ---------------------------------------------------------------------------------------------------------
    @rule(name=writable, version=versions, factor=st.integers(2, 9), extra=extras)
    def write(self, name: str, version: int, factor: int, extra: str) -> None:
        KINDS[name](self.repository, name, float(factor), version=version, extra=extra)
        self.written.setdefault(name, {})[version] = float(factor)
        self.ever[name].add(float(factor))

    @rule(name=writable, version=versions)
    def remove_a_version(self, name: str, version: int) -> None:
        shutil.rmtree(self.repository / name / str(version), ignore_errors=True)
        self.written.get(name, {}).pop(version, None)

    @rule(name=writable, text=st.sampled_from(["", "nonsense", "max_batch_size: -1", 'backend: "none"']))
    def spoil_the_configuration(self, name: str, text: str) -> None:
        model_factory.write_config(self.repository / name, text)

    @rule(name=writable, version=versions)
    def spoil_a_version(self, name: str, version: int) -> None:
        folder = self.repository / name / str(version)
        for path in folder.glob("model.*"):
            path.write_bytes(b"nothing")

    # -- control -------------------------------------------------------------------------------------------------------
    @rule(name=names)
    def load(self, name: str) -> None:
        status, _ = self.post(f"/v2/repository/models/{name}/load")
        if status == 200:
            self.ready.add(name)

    @rule(name=writable, factor=st.integers(2, 9), size=st.sampled_from([0, 4, 8]), with_file=st.booleans())
    def load_with_a_configuration(self, name: str, factor: int, size: int, with_file: bool) -> None:
        backend = "python" if name == "script" else "onnxruntime"
        tensors = [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]}]
        config = {"backend": backend, "max_batch_size": size, "input": tensors}
        config["output"] = [{**tensors[0], "name": "OUTPUT0"}]
        parameters: dict[str, Any] = {"config": json.dumps(config)}
        if with_file:
            folder = self.repository.parent / "override"
            path = next(path for path in (KINDS[name](folder, name, float(factor)) / "1").iterdir() if path.is_file())
            parameters[f"file:1/{path.name}"] = base64.b64encode(path.read_bytes()).decode()
            self.ever[name].add(float(factor))
        status, _ = self.post(f"/v2/repository/models/{name}/load", {"parameters": parameters})
        if status == 200:
            self.ready.add(name)

    @rule(name=names, dependents=st.booleans())
    def unload(self, name: str, dependents: bool) -> None:
        status, _ = self.post(f"/v2/repository/models/{name}/unload", {"parameters": {"unload_dependents": dependents}})
        if status == 200:
            self.ready.discard(name)

    # -- questions -----------------------------------------------------------------------------------------------------
    @rule(name=writable)
    def infer(self, name: str) -> None:
        status, said = self.post(f"/v2/models/{name}/infer", json.loads(infer_body(tensor([1.0]))))
        if status == 200:
            assert said["outputs"][0]["data"][0] in self.ever[name], (said, self.ever)

    @rule()
    def infer_with_the_pipeline(self) -> None:
        body = json.loads(infer_body(tensor([1.0], name="X")))
        status, said = self.post(f"/v2/models/{PIPELINE}/infer", body)
        if status == 200:
            products = {first * second for first in self.ever["first"] for second in self.ever["second"]}
            assert said["outputs"][0]["data"][0] in products

    @rule(name=names, version=st.integers(0, 4))
    def ask_about(self, name: str, version: int) -> None:
        place = f"/v2/models/{name}" + (f"/versions/{version}" if version else "")
        for what in ("", "/config", "/stats", "/ready"):
            status, said = self.server.get(place + what)
            assert status < 500 or status == 503, (place + what, status, said)

    @invariant()
    def the_index_fits_and_the_kept_model_answers(self) -> None:
        rows = self.post("/v2/repository/index")[1]
        unloaded = [row for row in rows if row["name"] in KINDS and row["name"] not in self.ready]
        assert [
            row for row in unloaded if row.get("state") == "READY" and not self.loaded_by_another(row["name"])
        ] == []
        assert self.server.post(f"/v2/models/{KEPT}/infer", json.loads(infer_body(tensor([1.0]))))[0] == 200

    def loaded_by_another(self, name: str) -> bool:
        """An ensemble's load brings its steps, also where it fails in the end."""
        return name in ("first", "second")


@pytest.mark.hypothesis
def test_repository_control_in_any_order(repository: Path, server: ServerProcess) -> None:
    Control.server, Control.repository = server, repository
    run_machine(Control, examples=12, steps=25)
