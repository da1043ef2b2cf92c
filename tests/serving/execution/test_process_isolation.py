"""`slipway.isolation: process`: a backend in child processes answers as it does in the server, and ends with them."""

from pathlib import Path

import numpy as np
import pytest

from serving.backends.table import make_backend
from serving.core.datatypes import DATATYPES
from serving.core.devices import CPU
from serving.core.errors import ServingError
from tests.serving.instances import execute, infer, instance_of, request, spec_of
from tests.support.model_factory import onnx_add_sub, onnx_identity, onnx_mlp, torchscript_add_sub
from tests.support.serving_process import kill_and_wait, new_descendants

PROCESS = """parameters { key: "slipway.isolation" value { string_value: "\\"process\\"" } }"""


def isolation(value: str) -> str:
    return f'parameters {{ key: "slipway.isolation" value {{ string_value: "{value}" }} }}'


def test_a_batch_is_answered_as_in_the_server_itself(tmp_path):
    folders = onnx_add_sub(tmp_path, "plain"), onnx_add_sub(tmp_path, "apart", extra=PROCESS)
    random = np.random.default_rng(1)
    inputs = [
        {f"INPUT{index}": random.standard_normal((rows, 4), np.float32) for index in (0, 1)} for rows in (1, 3, 2)
    ]
    with instance_of(folders[0]) as plain:
        assert not new_descendants()
        expected = execute(plain, *(request(one, id=str(index)) for index, one in enumerate(inputs)))
    with instance_of(folders[1]) as apart:
        assert len(new_descendants()) == 1
        answers = execute(apart, *(request(one, id=str(index)) for index, one in enumerate(inputs)))
        for wanted in ("OUTPUT0",), ("OUTPUT1", "OUTPUT0"):
            [answer] = execute(apart, request(inputs[0], requested=wanted))
            assert set(answer.outputs) == set(wanted)
    assert not new_descendants()
    for answer, reference in zip(answers, expected, strict=True):
        assert (answer.model_name, answer.id) == ("apart", reference.id)
        for name, output in reference.outputs.items():
            assert np.array_equal(answer.outputs[name], output)


@pytest.mark.parametrize("name", ["BYTES", "BOOL", "FP16", "INT64"])
def test_datatypes_pass_through(tmp_path, name):
    array = np.array([[b"a", b"", "ä".encode()]], object)
    if name != "BYTES":
        array = np.array([[1, 0, 1]]).astype(DATATYPES[name].dtype)
    with instance_of(onnx_identity(tmp_path, datatype=name, extra=PROCESS)) as instance:
        answers = execute(instance, request(array), request(array[:, ::-1].copy()))
    assert np.array_equal(answers[0].outputs["OUTPUT0"], array)
    assert np.array_equal(answers[1].outputs["OUTPUT0"], array[:, ::-1])


def test_torchscript_runs_apart_too(tmp_path):
    with instance_of(torchscript_add_sub(tmp_path, extra=PROCESS)) as instance:
        outputs = infer(instance, {"INPUT__0": np.ones((1, 4), np.float32), "INPUT__1": np.ones((1, 4), np.float32)})
    assert np.array_equal(outputs["OUTPUT__0"], np.full((1, 4), 2, np.float32))


def test_a_killed_process_is_restarted(tmp_path):
    with instance_of(onnx_mlp(tmp_path, sizes=(8, 4), extra=PROCESS)) as instance:
        array = np.ones((1, 8), np.float32)
        before = infer(instance, {"INPUT": array})["OUTPUT"]
        [child] = new_descendants()
        kill_and_wait(child)
        assert np.array_equal(infer(instance, {"INPUT": array})["OUTPUT"], before)


def load_error(folder: Path) -> ServingError:
    """The error of a model file that is cut off after its configuration was completed from it."""
    spec = spec_of(folder)
    spec.model_file.write_bytes(spec.model_file.read_bytes()[:100])
    backend = make_backend(spec)
    try:
        backend.load()
        backend.create_instance(CPU, "instance")
    except ServingError as error:
        return error
    raise AssertionError("a broken file was loaded")


def test_a_model_file_that_is_broken_fails_the_load_with_the_backends_words(tmp_path):
    plain = load_error(onnx_add_sub(tmp_path, "plain"))
    apart = load_error(onnx_add_sub(tmp_path, "apart", extra=PROCESS))
    assert (plain.code, plain.message) == (apart.code, apart.message.replace("apart", "plain"))
    assert not new_descendants()


def test_none_is_the_default_and_may_be_said(tmp_path):
    with instance_of(onnx_add_sub(tmp_path, extra=isolation('\\"none\\"'))):
        assert not new_descendants()
