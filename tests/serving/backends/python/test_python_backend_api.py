"""What a model.py sees and may answer: Triton's python_backend API, driven without a server."""

import json

import ml_dtypes
import numpy as np
import pytest

from serving.core.datatypes import DATATYPES
from serving.core.errors import Code, ServingError
from serving.core.response import InferenceResponse
from tests.serving.instances import IDENTITY, execute, infer, python_instance, request

REPORT = [("REPORT", "BYTES", [1])]


def reporting(expression: str, setup: str = "pass") -> str:
    """A model that answers each request with an expression as JSON."""
    return f"""
        import json
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.args = args
                {setup}

            def execute(self, requests):
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("REPORT", np.array([json.dumps({expression})], dtype=object))]
                    )
                    for request in requests
                ]
    """


def report(instance, inputs=None, **fields):
    array = np.zeros((1, 1), np.float32) if inputs is None else inputs
    return json.loads(infer(instance, array, **fields)["REPORT"][0])


@pytest.mark.parametrize("name", DATATYPES)
def test_every_datatype_comes_back_as_it_was_sent(tmp_path, name):
    row = DATATYPES[name]
    if name == "BYTES":
        array = np.array([[b"one", b"", "drei \u00e4".encode(), b"\x00\xff" * 10]], object)
    else:
        array = np.arange(12).reshape(2, 6).astype(row.dtype)
    tensors = [("INPUT0", name, [-1])], [("OUTPUT0", name, [-1])]
    with python_instance(tmp_path, IDENTITY, inputs=tensors[0], outputs=tensors[1]) as instance:
        output = infer(instance, array)["OUTPUT0"]
        again = infer(instance, array[:, :1])["OUTPUT0"]
    assert output.dtype == row.dtype
    assert np.array_equal(output, array)
    assert np.array_equal(again, array[:, :1])


@pytest.mark.parametrize("name", ["FP32", "BYTES"])
@pytest.mark.parametrize("shape", [(0,), (1, 0), (0, 3), ()])
def test_zero_size_and_scalar_tensors_keep_their_shape(tmp_path, name, shape):
    tensors = [("INPUT0", name, [-1])], [("OUTPUT0", name, [-1])]
    array = np.full(shape, b"x", object) if name == "BYTES" else np.ones(shape, np.float32)
    with python_instance(tmp_path, IDENTITY, inputs=tensors[0], outputs=tensors[1], max_batch_size=0) as instance:
        output = infer(instance, array, batch_size=1)["OUTPUT0"]
    assert output.shape == shape
    assert np.array_equal(output, array)


def test_strings_in_numpy_string_arrays_become_bytes(tmp_path):
    source = reporting("None").replace("np.array([json.dumps(None)], dtype=object)", 'np.array(["text", "t\\u00e4xt"])')
    with python_instance(tmp_path, source, outputs=REPORT) as instance:
        assert list(infer(instance, np.zeros((1, 1), np.float32))["REPORT"]) == [b"text", "t\u00e4xt".encode()]


def test_each_request_of_a_batch_gets_its_own_response(tmp_path):
    arrays = [np.full((rows, 3), rows, np.float32) for rows in (1, 2, 4)]
    with python_instance(tmp_path, IDENTITY) as instance:
        answers = execute(instance, *(request(array, id=f"r{len(array)}") for array in arrays))
    assert [answer.id for answer in answers] == ["r1", "r2", "r4"]
    for answer, array in zip(answers, arrays, strict=True):
        assert np.array_equal(answer.outputs["OUTPUT0"], array)


def test_initialize_gets_the_arguments_that_triton_gives(tmp_path):
    with python_instance(tmp_path, reporting("self.args"), outputs=REPORT) as instance:
        args = report(instance)
    config = json.loads(args.pop("model_config"))
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "model_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(tmp_path / "model"),
        "model_version": "1",
        "model_name": "model",
    }
    assert config["max_batch_size"] == 8
    assert config["input"][0] | {} == config["input"][0]
    assert (config["input"][0]["name"], config["input"][0]["data_type"], config["input"][0]["dims"]) == (
        "INPUT0",
        "TYPE_FP32",
        [-1],
    )


def test_a_request_shows_its_identity_parameters_and_limits(tmp_path):
    expression = (
        "[request.request_id(), request.correlation_id(), request.flags(), json.loads(request.parameters()), "
        "request.timeout(), request.priority(), request.requested_output_names()]"
    )
    outputs = [*REPORT, ("OTHER", "FP32", [1])]
    with python_instance(tmp_path, reporting(expression), outputs=outputs) as instance:
        fields = {"sequence_id": 2**63, "sequence_start": True, "sequence_end": True, "timeout_us": 5, "priority": 2}
        given = report(instance, id="abc", parameters={"a": 1, "b": "x", "c": True, "d": 0.5}, **fields)
        plain = report(instance, requested=("REPORT",), sequence_id="name")
    assert given == ["abc", 2**63, 3, {"a": 1, "b": "x", "c": True, "d": 0.5}, 5, 2, ["REPORT", "OTHER"]]
    assert plain == ["", "name", 0, {}, 0, 0, ["REPORT"]]


def test_tensors_tell_their_name_type_shape_and_place(tmp_path):
    expression = "[(t.name(), t.triton_dtype(), t.shape(), t.is_cpu()) for t in request.inputs()]"
    inputs = [("A", "FP32", [-1]), ("B", "BYTES", [-1]), ("C", "BF16", [-1])]
    arrays = {
        "A": np.zeros((1, 2), np.float32),
        "B": np.array([[b"x"]], object),
        "C": np.zeros((1, 3), ml_dtypes.bfloat16),
    }
    with python_instance(tmp_path, reporting(expression), inputs=inputs, outputs=REPORT) as instance:
        assert report(instance, arrays) == [["A", 11, [1, 2], True], ["B", 13, [1, 1], True], ["C", 14, [1, 3], True]]


def test_an_input_may_be_changed_in_place_without_harm_to_the_clients_array(tmp_path):
    source = IDENTITY.replace("request.inputs()[0].as_numpy()", "double(request)") + (
        "\n\n    def double(request):\n        array = request.inputs()[0].as_numpy()\n        array *= 2\n        return array"
    )
    array = np.ones((1, 4), np.float32)
    array.flags.writeable = False
    with python_instance(tmp_path, source) as instance:
        assert np.array_equal(infer(instance, array)["OUTPUT0"], array * 2)


def test_dlpack_goes_both_ways_with_torch(tmp_path):
    source = """
        import torch
        import triton_python_backend_utils as pb_utils

        def twice(tensor):
            by_capsule = torch.utils.dlpack.from_dlpack(tensor.to_dlpack())
            by_protocol = torch.from_dlpack(tensor)
            assert torch.equal(by_capsule, by_protocol)
            joined = torch.cat([by_capsule, by_protocol], dim=1)
            one = pb_utils.Tensor.from_dlpack(f"OUT_{tensor.name()}", joined)
            other = pb_utils.Tensor.from_dlpack(f"OUT_{tensor.name()}", torch.utils.dlpack.to_dlpack(joined))
            assert (one.as_numpy() == other.as_numpy()).all()
            return other

        class TritonPythonModel:
            def execute(self, requests):
                return [pb_utils.InferenceResponse([twice(tensor) for tensor in one.inputs()]) for one in requests]
    """
    names = ("FP32", "BF16", "BOOL", "INT8")
    arrays = {name: np.array([[0, 1, 1, 0]]).astype(DATATYPES[name].dtype) for name in names}
    inputs, outputs = [(name, name, [-1]) for name in names], [(f"OUT_{name}", name, [-1]) for name in names]
    with python_instance(tmp_path, source, inputs=inputs, outputs=outputs) as instance:
        answers = infer(instance, arrays)
    for name, array in arrays.items():
        assert answers[f"OUT_{name}"].dtype == array.dtype
        assert np.array_equal(answers[f"OUT_{name}"], np.concatenate([array, array], axis=1))


def test_a_response_may_carry_an_error_with_its_code_and_leave_the_others_alone(tmp_path):
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                answers = []
                for request in requests:
                    array = request.inputs()[0].as_numpy()
                    if array[0, 0] == 0:
                        error = pb_utils.TritonError("no such row", pb_utils.TritonError.NOT_FOUND)
                        answers.append(pb_utils.InferenceResponse(error=error))
                    elif array[0, 0] == 1:
                        answers.append(pb_utils.InferenceResponse([], pb_utils.TritonError("broken")))
                    else:
                        answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
                return answers
    """
    with python_instance(tmp_path, source) as instance:
        answers = execute(instance, *(request(np.full((1, 1), value, np.float32)) for value in (0, 1, 2)))
    assert [(a.code, a.message) for a in answers[:2]] == [(Code.NOT_FOUND, "no such row"), (Code.INTERNAL, "broken")]
    assert answers[2].outputs["OUTPUT0"][0, 0] == 2


def test_the_client_gets_every_error_code(tmp_path):
    names = (
        "UNKNOWN",
        "INTERNAL",
        "NOT_FOUND",
        "INVALID_ARG",
        "UNAVAILABLE",
        "UNSUPPORTED",
        "ALREADY_EXISTS",
        "CANCELLED",
    )
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                codes = [getattr(pb_utils.TritonError, request.request_id()) for request in requests]
                return [pb_utils.InferenceResponse(error=pb_utils.TritonError("told", code)) for code in codes]
    """
    with python_instance(tmp_path, source) as instance:
        answers = execute(instance, *(request(np.zeros((1, 1), np.float32), id=name) for name in names))
    assert [(answer.code, answer.message) for answer in answers] == [(Code[name], "told") for name in names]


def test_dlpack_takes_tensors_in_c_order_only_and_numpy_arrays_in_any(tmp_path):
    source = """
        import numpy as np
        import torch
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                array = requests[0].inputs()[0].as_numpy()
                tensor = pb_utils.Tensor("OUTPUT0", array.T)
                assert torch.equal(torch.from_dlpack(tensor), torch.from_numpy(array).T)
                try:
                    pb_utils.Tensor.from_dlpack("OUTPUT0", torch.from_numpy(array).T)
                except pb_utils.TritonModelException as error:
                    assert "is not contiguous in C order" in str(error)
                else:
                    raise AssertionError("it was taken")
                return [pb_utils.InferenceResponse([tensor])]
    """
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with python_instance(tmp_path, source, max_batch_size=0, outputs=[("OUTPUT0", "FP32", [-1, -1])]) as instance:
        assert np.array_equal(infer(instance, array)["OUTPUT0"], array.T)


def test_response_parameters_reach_the_client(tmp_path):
    source = IDENTITY.replace("as_numpy())])", 'as_numpy())], parameters={"k": "v", "n": 3, "yes": True})')
    with python_instance(tmp_path, source) as instance:
        [answer] = execute(instance, request(np.zeros((1, 1), np.float32)))
    assert answer.parameters == {"k": "v", "n": 3, "yes": True}


def test_only_requested_outputs_come_back_in_the_configurations_order(tmp_path):
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                tensors = [pb_utils.Tensor(name, np.zeros((1, 1), np.float32)) for name in ("B", "EXTRA", "A")]
                return [pb_utils.InferenceResponse(tensors) for _ in requests]
    """
    outputs = [("A", "FP32", [1]), ("B", "FP32", [1])]
    with python_instance(tmp_path, source, outputs=outputs) as instance:
        assert list(infer(instance, np.zeros((1, 1), np.float32))) == ["A", "B"]
        assert list(infer(instance, np.zeros((1, 1), np.float32), requested=("B",))) == ["B"]


def test_execute_may_be_a_coroutine(tmp_path):
    source = IDENTITY.replace("def execute", "async def execute").replace(
        "return [", "import asyncio\n            await asyncio.sleep(0)\n            return ["
    )
    with python_instance(tmp_path, source) as instance:
        for value in (1.0, 2.0):
            assert infer(instance, np.full((1, 1), value, np.float32))["OUTPUT0"][0, 0] == value


def test_a_response_sender_may_be_used_in_place_of_returning(tmp_path):
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    with python_instance(tmp_path, source) as instance:
        answers = execute(instance, *(request(np.full((1, 1), value, np.float32)) for value in (1, 2)))
    assert [answer.outputs["OUTPUT0"][0, 0] for answer in answers] == [1, 2]


def test_a_model_can_ask_whether_its_client_has_gone(tmp_path):
    with python_instance(tmp_path, reporting("request.is_cancelled()"), outputs=REPORT) as instance:
        here, gone = request(np.zeros((1, 1), np.float32)), request(np.zeros((1, 1), np.float32))
        gone.cancelled = True
        answers = execute(instance, here, gone)
    assert [answer.outputs["REPORT"][0] for answer in answers] == [b"false", b"true"]


def test_the_helpers_know_configurations_types_and_the_models_folder(tmp_path):
    expression = (
        "[pb_utils.get_input_config_by_name(self.config, 'INPUT0')['data_type'], "
        "pb_utils.get_output_config_by_name(self.config, 'REPORT')['dims'], "
        "pb_utils.get_input_config_by_name(self.config, 'nothing'), "
        "pb_utils.triton_string_to_numpy('TYPE_INT64').__name__, pb_utils.triton_to_numpy_type(10).__name__, "
        "pb_utils.numpy_to_triton_type(np.float32), pb_utils.numpy_to_triton_type(np.object_), "
        "pb_utils.using_decoupled_model_transaction_policy(self.config), pb_utils.get_model_dir(), "
        "pb_utils.get_input_tensor_by_name(request, 'nothing'), "
        "pb_utils.deserialize_bytes_tensor(pb_utils.serialize_byte_tensor(np.array([b'ab', 'c'], object)))[1].decode()]"
    )
    source = reporting(expression, setup="self.config = json.loads(args['model_config'])")
    with python_instance(tmp_path, source, outputs=REPORT) as instance:
        assert report(instance) == [
            *("TYPE_FP32", [1], None, "int64", "float16", 11, 13, False),
            *(str(tmp_path / "model" / "1"), None, "c"),
        ]


def test_a_model_imports_the_modules_beside_it(tmp_path):
    source = IDENTITY.replace("import triton", "import helper\n    from . import other\n    import triton").replace(
        "as_numpy()", "as_numpy() + helper.ONE + other.TEN"
    )
    version = tmp_path / "model" / "1"
    version.mkdir(parents=True)
    (version / "helper.py").write_text("ONE = 1\n")
    (version / "other.py").write_text("TEN = 10\n")
    with python_instance(tmp_path, source) as instance:
        assert infer(instance, np.zeros((1, 1), np.float32))["OUTPUT0"][0, 0] == 11
    assert not list(version.rglob("__pycache__")), "a version's folder must stay as it was published"


def test_a_model_that_asks_for_another_one_gets_an_error_outside_a_server(tmp_path):
    source = reporting("(_ for _ in ()).throw(RuntimeError(pb_utils.load_model(model_name='x')))")
    with (
        python_instance(tmp_path, source, outputs=REPORT) as instance,
        pytest.raises(ServingError, match="there is no server to ask"),
    ):
        infer(instance, np.zeros((1, 1), np.float32))


def test_the_output_and_log_of_a_model_go_to_the_servers_log(tmp_path, caplog):
    caplog.set_level("DEBUG")
    source = """
        import sys
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                print("plainly printed")
                print("to stderr", file=sys.stderr)
                logger = pb_utils.Logger
                logger.log_info("told")
                logger.log_warn("warned\\nin two lines")
                logger.log_error("failed")
                logger.log_verbose("whispered")
                logger.log("at a level", logger.WARNING)

            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    with python_instance(tmp_path, source) as instance:
        execute(instance, request(np.zeros((1, 1), np.float32)))
    lines = {(record.levelname, record.getMessage()) for record in caplog.records}
    assert {
        ("INFO", "model_0_0: plainly printed"),
        ("INFO", "model_0_0: to stderr"),
        ("INFO", "model_0_0: told"),
        ("WARNING", "model_0_0: warned\nin two lines"),
        ("ERROR", "model_0_0: failed"),
        ("DEBUG", "model_0_0: whispered"),
        ("WARNING", "model_0_0: at a level"),
    } <= lines


def test_a_response_without_any_output_is_a_response(tmp_path):
    source = IDENTITY.replace('[pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]', "[]")
    with python_instance(tmp_path, source) as instance:
        [answer] = execute(instance, request(np.zeros((1, 1), np.float32)))
    assert isinstance(answer, InferenceResponse)
    assert answer.outputs == {}
