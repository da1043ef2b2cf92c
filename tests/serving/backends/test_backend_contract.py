"""What every backend that maps arrays to arrays does alike."""

import gc
import weakref

import numpy as np
import pytest

from serving.core.batch import Batch
from serving.core.devices import CPU
from serving.core.errors import Code, ServingError
from tests.serving.backends.cases import CASES, Case
from tests.serving.backends.driving import execute, infer, instance_of, loaded, random_array, request, spec_of

every_backend = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def pair(rows: int, first: float = 1.0) -> dict[str, np.ndarray]:
    a = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4) + np.float32(first)
    return {"INPUT0": a, "INPUT1": np.ones_like(a)}


@every_backend
def test_one_request_of_one_row_is_answered(case: Case, tmp_path):
    with instance_of(case.add_sub(tmp_path)) as instance:
        inputs = pair(1)
        outputs = infer(instance, **inputs)
    assert list(outputs) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(outputs["OUTPUT0"], inputs["INPUT0"] + 1)
    np.testing.assert_array_equal(outputs["OUTPUT1"], inputs["INPUT0"] - 1)


@every_backend
def test_many_requests_run_as_one_batch_and_each_gets_its_own_rows(case: Case, tmp_path):
    with instance_of(case.add_sub(tmp_path)) as instance:
        requests = [request(pair(rows, first)) for rows, first in ((1, 0.5), (3, 100.0), (2, -7.0))]
        answers = execute(instance, *requests)
    for asked, answer in zip(requests, answers, strict=True):
        np.testing.assert_array_equal(answer["OUTPUT0"], asked.inputs["INPUT0"] + 1)
        np.testing.assert_array_equal(answer["OUTPUT1"], asked.inputs["INPUT0"] - 1)


@every_backend
def test_each_request_gets_only_the_outputs_that_it_asks_for(case: Case, tmp_path):
    with instance_of(case.add_sub(tmp_path)) as instance:
        first, second = execute(instance, request(pair(1), ("OUTPUT1",)), request(pair(2)))
    assert list(first) == ["OUTPUT1"]
    assert list(second) == ["OUTPUT0", "OUTPUT1"]
    np.testing.assert_array_equal(first["OUTPUT1"], pair(1)["INPUT0"] - 1)


DATATYPES = [pytest.param(case, name, id=f"{case.name}-{name}") for case in CASES for name in case.datatypes]


@pytest.mark.parametrize(("case", "datatype"), DATATYPES)
def test_every_datatype_goes_through_unchanged(case: Case, datatype: str, tmp_path):
    array = random_array(datatype, (3, 4))
    with instance_of(case.identity(tmp_path, datatype)) as instance:
        output = infer(instance, INPUT0=array)["OUTPUT0"]
    assert output.dtype == array.dtype
    assert output.tolist() == array.tolist()


@every_backend
def test_the_body_of_a_request_is_read_only_and_stays_as_it_was(case: Case, tmp_path):
    body = np.arange(8, dtype=np.float32).tobytes()
    array = np.frombuffer(body, np.float32).reshape(2, 4)
    with instance_of(case.add_sub(tmp_path)) as instance:
        infer(instance, INPUT0=array, INPUT1=array)
    assert body == np.arange(8, dtype=np.float32).tobytes()


@every_backend
def test_two_instances_work_side_by_side_and_closing_one_leaves_the_other(case: Case, tmp_path):
    with loaded(case.add_sub(tmp_path)) as backend:
        one, two = (backend.create_instance(CPU, f"add_sub_0_{index}") for index in range(2))
        one.close()
        np.testing.assert_array_equal(infer(two, **pair(1))["OUTPUT0"], pair(1)["INPUT0"] + 1)
        two.close()


@every_backend
def test_a_closed_and_unloaded_model_leaves_nothing_behind(case: Case, tmp_path):
    with loaded(case.add_sub(tmp_path)) as backend:
        instance = backend.create_instance(CPU, "add_sub_0_0")
        infer(instance, **pair(1))
        held = weakref.ref(case.model_of(instance))
        instance.close()
    gc.collect()
    assert held() is None


@every_backend
def test_a_truncated_model_file_is_refused_in_one_sentence(case: Case, tmp_path):
    folder = case.add_sub(tmp_path)
    file = folder / "1" / case.filename
    content = file.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 20):
        file.write_bytes(content[:size])
        with pytest.raises(ServingError) as refused, instance_of(folder):
            pass
        assert refused.value.code is Code.INVALID_ARG
        _is_one_sentence(refused.value.message, tmp_path)


@every_backend
def test_a_text_file_under_the_model_files_name_is_called_text(case: Case, tmp_path):
    folder = case.add_sub(tmp_path)
    (folder / "1" / case.filename).write_text("this is no model\n" * 20)
    with pytest.raises(ServingError, match="the file is text") as refused:
        spec_of(folder)
    _is_one_sentence(refused.value.message, tmp_path)


@every_backend
def test_random_bytes_are_refused(case: Case, tmp_path):
    folder = case.add_sub(tmp_path)
    (folder / "1" / case.filename).write_bytes(np.random.default_rng(0).bytes(4096))
    with pytest.raises(ServingError) as refused:
        spec_of(folder)
    assert refused.value.code is Code.INVALID_ARG


@every_backend
def test_a_missing_model_file_is_named(case: Case, tmp_path):
    folder = case.add_sub(tmp_path)
    (folder / "1" / case.filename).unlink()
    with pytest.raises(ServingError, match="the version folder has no 'model") as refused:
        spec_of(folder)
    assert refused.value.code is Code.NOT_FOUND


@every_backend
def test_a_malformed_parameter_is_refused_by_name(case: Case, tmp_path):
    key = case.integer_parameter
    folder = case.add_sub(tmp_path)
    with (folder / "config.pbtxt").open("a") as file:
        file.write(f'parameters {{ key: "{key}" value {{ string_value: "many" }} }}\n')
    with pytest.raises(ServingError, match=f"parameter '{key}' must be an integer, but is 'many'"), loaded(folder):
        pass


@pytest.mark.parametrize("case", [case for case in CASES if case.no_rows], ids=lambda case: case.name)
def test_a_batch_of_no_rows_gives_no_rows(case: Case, tmp_path):
    with instance_of(case.add_sub(tmp_path)) as instance:
        empty = np.zeros((0, 4), np.float32)
        assert infer(instance, INPUT0=empty, INPUT1=empty)["OUTPUT0"].shape == (0, 4)


@every_backend
def test_a_failing_run_fails_its_batch_and_not_the_next(case: Case, tmp_path):
    with instance_of(case.add_sub(tmp_path)) as instance:
        wrong = {"INPUT0": np.ones((1, 5), np.float32), "INPUT1": np.ones((1, 4), np.float32)}
        batch = Batch([request(wrong)], 1)
        with pytest.raises(ServingError) as failed:
            instance.execute(batch)
        _is_one_sentence(failed.value.message, tmp_path)
        assert infer(instance, **pair(1))["OUTPUT0"].shape == (1, 4)


def _is_one_sentence(message: str, folder) -> None:
    assert message
    assert "\n" not in message
    assert str(folder) not in message
    assert "/" not in message
