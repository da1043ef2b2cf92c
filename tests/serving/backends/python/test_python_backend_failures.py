"""A model.py that raises, crashes, hangs or answers nonsense: its own requests fail clearly, nothing else does."""

import asyncio
import os
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest

from serving.backends.base.backend import BackendInstance
from serving.backends.child import supervisor
from serving.backends.table import make_backend
from serving.core.devices import CPU
from serving.core.errors import Code, ServingError
from tests.serving.in_process import core
from tests.serving.in_process import infer as core_infer
from tests.serving.instances import (
    IDENTITY,
    execute,
    infer,
    instance_of,
    python_instance,
    request,
    spec_of,
    written_model,
)
from tests.support.serving_process import PATIENCE_S, kill_and_wait, new_descendants, wait_until

ONE = np.ones((1, 1), np.float32)
POISON = np.full((1, 1), -1, np.float32)


def model(statement: str, where: str = "execute") -> str:
    """An identity that runs `statement` in a method; in execute, only for a request whose input is negative."""
    body = {"initialize": "pass", "execute": "pass", "finalize": "pass"}
    body[where] = statement
    return f"""
        import ctypes
        import os
        import signal
        import sys
        import threading
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                {body["initialize"]}

            def execute(self, requests):
                if any(request.inputs()[0].as_numpy()[0, 0] < 0 for request in requests):
                    {body["execute"]}
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]

            def finalize(self):
                {body["finalize"]}
    """


# -- exceptions --------------------------------------------------------------------------------------------------------
def test_an_exception_in_execute_fails_the_batch_with_its_text_and_place(tmp_path):
    with python_instance(tmp_path, model('raise ValueError("the vocabulary is empty")')) as instance:
        answers = execute(instance, request(ONE), request(POISON))
        for answer in answers:
            assert answer.code is Code.INTERNAL
            assert answer.message == (
                "Failed to process the request(s) for model 'model', message: ValueError: the vocabulary is empty "
                "(model.py, line 16, in execute)"
            )
        assert infer(instance, ONE)["OUTPUT0"] == 1, "the process goes on"


def test_the_client_gets_the_text_of_a_triton_model_exception(tmp_path):
    with (
        python_instance(tmp_path, model('raise pb_utils.TritonModelException("come back later")')) as instance,
        pytest.raises(
            ServingError, match=r"^Failed to process the request\(s\) for model 'model', message: come back later$"
        ),
    ):
        infer(instance, POISON)


@pytest.mark.parametrize(
    "statement",
    [
        'raise ValueError(f"cannot read {io.BytesIO()} of {self.execute}")',
        'raise pb_utils.TritonModelException(f"cannot read {io.BytesIO()} of {self.execute}")',
        'return [pb_utils.InferenceResponse(error=pb_utils.TritonError(f"cannot read {io.BytesIO()} of {self.execute}"))]',
    ],
    ids=["an exception", "TritonModelException", "TritonError"],
)
def test_no_error_has_the_address_of_an_object(tmp_path, statement):
    source = model(statement).replace("import ctypes", "import io")
    with python_instance(tmp_path, source) as instance:
        with pytest.raises(ServingError) as caught:
            infer(instance, POISON)
        assert (
            "cannot read <_io.BytesIO object> of <bound method TritonPythonModel.execute of <" in caught.value.message
        )
        assert "0x" not in caught.value.message


def test_an_absolute_path_in_an_exception_is_cut_to_its_last_name(tmp_path):
    with python_instance(tmp_path, model('open("/some/where/else/vocabulary.txt")')) as instance:
        with pytest.raises(ServingError) as caught:
            infer(instance, POISON)
        assert "No such file or directory: 'vocabulary.txt' (model.py, line 16" in caught.value.message


def test_no_error_has_a_path_of_this_machine(tmp_path):
    with (
        python_instance(tmp_path, model('open(pb_utils.get_model_dir() + "/words.txt")')) as instance,
        pytest.raises(ServingError) as error,
    ):
        infer(instance, POISON)
    assert "words.txt" in error.value.message
    assert str(tmp_path) not in error.value.message


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return None", "must return a list of responses, not NoneType"),
        ("return []", "returned 0 responses for 1 requests"),
        ("return [3]", "must return InferenceResponse objects, not int"),
        ("return [None]", "must return InferenceResponse objects, not NoneType"),
        ("return [pb_utils.InferenceResponse(['x'])]", "must be pb_utils.Tensor objects, not str"),
        ("return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', [1])])]", "from a numpy array, not from list"),
        (
            "return [pb_utils.InferenceResponse([], parameters={'a': [1]})]",
            "parameters must be strings, whole numbers or booleans",
        ),
        ("return [pb_utils.InferenceResponse([], parameters={'a': 2.0 ** 5000})]", "OverflowError"),
        (
            "return [pb_utils.InferenceResponse([], parameters={'a': 1e400})]",
            "parameters must be strings, whole numbers or booleans",
        ),
        (
            "return [pb_utils.InferenceResponse([], parameters={'a': 2 ** 64})]",
            "parameters must be strings, whole numbers",
        ),
        (
            "return [pb_utils.InferenceResponse([], parameters={chr(0xD800): 1})]",
            "parameters must be strings, whole numbers",
        ),
        ("return [pb_utils.InferenceResponse([], parameters=['a'])]", "parameters must be a dictionary, not list"),
        ("return [pb_utils.InferenceResponse(error='wrong')]", "error must be a pb_utils.TritonError, not str"),
        ("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('x', 3))]", "3 is not a valid ErrorCode"),
        ("sys.exit(3)", "SystemExit: 3"),
        ('raise ValueError("\\ud800 is half a character")', "is half a character"),
    ],
)
def test_a_wrong_answer_from_execute_is_explained(tmp_path, statement, expected):
    with python_instance(tmp_path, model(statement)) as instance:
        with pytest.raises(ServingError, match=expected):
            infer(instance, POISON)
        assert infer(instance, ONE)["OUTPUT0"] == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import nonexistent_package", "ModuleNotFoundError: No module named 'nonexistent_package' .model.py, line 1"),
        ("x = (", r"SyntaxError: '\(' was never closed \(model.py, line 1\)"),
        ("x = 1", "model.py has no class TritonPythonModel"),
        ("class TritonPythonModel: pass", "the class TritonPythonModel has no method 'execute'"),
        (
            model('raise OSError("weights missing")', "initialize"),
            r"OSError: weights missing \(model.py, line 12, in init",
        ),
        (model("os._exit(7)", "initialize"), "the model's process ended with exit status 7 before it was ready"),
        (model("ctypes.string_at(0)", "initialize"), "was ended by signal SIGSEGV before it was ready"),
    ],
)
def test_a_model_that_does_not_start_gives_the_whole_reason(tmp_path, source, expected):
    with pytest.raises(ServingError, match=expected) as error, python_instance(tmp_path, source):
        pass
    assert str(tmp_path) not in error.value.message
    assert not new_descendants()


def test_an_exception_in_finalize_goes_to_the_log_only(tmp_path, caplog):
    caplog.set_level("INFO")
    with python_instance(tmp_path, model('raise ValueError("cannot say goodbye")', "finalize")) as instance:
        infer(instance, ONE)
    assert "cannot say goodbye" in caplog.text


# -- the process ends --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("statement", "how"),
    [
        ("ctypes.string_at(0)", "was ended by signal SIGSEGV"),
        ("os._exit(3)", "ended with exit status 3"),
        ("os._exit(0)", "ended with exit status 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by signal SIGKILL"),
        ("os.abort()", "was ended by signal SIGABRT"),
    ],
)
def test_a_process_that_ends_fails_its_batch_and_is_restarted(tmp_path, statement, how):
    with python_instance(tmp_path, model(statement)) as instance:
        answers = execute(instance, request(ONE), request(POISON))
        for answer in answers:
            assert answer.code is Code.INTERNAL
            assert (
                answer.message == f"model 'model': the model's process {how} during this request; it is being restarted"
            )
        assert infer(instance, ONE)["OUTPUT0"] == 1


def test_another_instance_is_not_disturbed_by_a_crash(tmp_path):
    folder = written_model(tmp_path, model("os._exit(3)"))
    with instance_of(folder, "one") as one, instance_of(folder, "two") as two:
        assert isinstance(execute(one, request(POISON))[0], ServingError)
        assert infer(two, ONE)["OUTPUT0"] == 1


def test_a_process_that_ends_between_requests_costs_no_request(tmp_path, caplog):
    with python_instance(tmp_path, IDENTITY) as instance:
        [child] = new_descendants()
        kill_and_wait(child)
        assert infer(instance, ONE)["OUTPUT0"] == 1
    assert "ended by signal SIGKILL between two requests" in caplog.text


def test_a_process_that_is_started_again_stays_on_the_cores_of_its_instance(tmp_path):
    """Another thread, which may run on other cores, notices the end of the process."""
    spec = spec_of(written_model(tmp_path, IDENTITY))
    core = {min(os.sched_getaffinity(0))}
    made: list[BackendInstance] = []

    def make() -> None:
        os.sched_setaffinity(0, core)
        made.append(make_backend(spec).create_instance(CPU, "bound"))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    [instance] = made
    try:
        [first] = instance.processes()
        kill_and_wait(first)
        assert infer(instance, ONE)["OUTPUT0"] == 1
        [second] = instance.processes()
        assert second != first
        assert os.sched_getaffinity(second) == core
    finally:
        instance.close()


def test_restarts_are_held_back_ever_longer_while_it_keeps_ending(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(supervisor, "LONGEST_WAIT_S", 0.5)
    with python_instance(tmp_path, model("os._exit(3)")) as instance:
        with monkeypatch.context() as stopped:
            stopped.setattr(supervisor, "time", Mock(monotonic=Mock(return_value=time.monotonic())))
            for _ in range(2):
                assert "is being restarted" in execute(instance, request(POISON))[0].message
            [refused] = execute(instance, request(ONE))
        assert refused.code is Code.UNAVAILABLE
        assert "keeps ending; the next start is in 1 s" in refused.message
        wait_until(lambda: not isinstance(execute(instance, request(ONE))[0], ServingError))
        assert "is being restarted" in execute(instance, request(POISON))[0].message
    delays = [record.args[1] for record in caplog.records if "is restarted in" in record.getMessage()]
    assert delays == [0, 1, 0], "a batch that succeeds ends the row"


def test_a_restart_that_fails_says_why_and_is_tried_again(tmp_path):
    flag = tmp_path / "broken"
    statement = f'if os.path.exists("{flag}"): raise OSError("no weights")'
    source = model(statement, "initialize").replace("                    pass", "                    os._exit(1)")
    with python_instance(tmp_path, source) as instance:
        flag.touch()
        execute(instance, request(POISON))
        [refused] = execute(instance, request(ONE))
        assert refused.code is Code.UNAVAILABLE
        assert "could not be restarted: OSError: no weights" in refused.message
        flag.unlink()
        wait_until(lambda: not isinstance(execute(instance, request(ONE))[0], ServingError))


def test_closing_while_a_restart_is_held_back_does_not_wait_for_it(tmp_path):
    with python_instance(tmp_path, model("os._exit(3)")) as instance:
        instance._supervisor._deaths = 9  # so the next start is a minute away
        execute(instance, request(POISON))
        start = time.monotonic()
    assert time.monotonic() - start < supervisor.MAX_BACK_OFF_S / 2
    assert not new_descendants()


# -- hanging -----------------------------------------------------------------------------------------------------------
def test_a_finalize_that_hangs_is_killed_after_the_grace(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "FINALIZE_GRACE_S", 0.3)
    with python_instance(tmp_path, model("time.sleep(600)", "finalize")) as instance:
        infer(instance, ONE)
    assert "finalize took longer than 0.3 s" in caplog.text
    assert not new_descendants()


def test_a_thread_that_keeps_the_process_alive_after_finalize_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "FINALIZE_GRACE_S", 0.5)
    with python_instance(tmp_path, model("threading.Thread(target=time.sleep, args=(600,)).start()")) as instance:
        infer(instance, POISON)
    assert not new_descendants()


def test_processes_that_a_model_started_end_with_it(tmp_path):
    statement = 'import subprocess; subprocess.Popen(["sleep", "600"])'
    with python_instance(tmp_path, model(statement)) as instance:
        infer(instance, POISON)
        assert len(new_descendants()) == 2
    assert not new_descendants()


def test_two_instances_execute_at_the_same_time(tmp_path):
    """Each waits for the other inside execute: it can only end when both run."""
    source = IDENTITY.replace("return [", "meet(requests[0])\n            return [") + (
        "\n\n    def meet(request):\n"
        "        import pathlib, time\n"
        "        folder, mine = pathlib.Path(pb_utils.get_model_dir()), request.request_id()\n"
        "        (folder / mine).touch()\n"
        "        deadline = time.monotonic() + 60\n"
        '        while not all((folder / name).exists() for name in ("one", "two")):\n'
        '            assert time.monotonic() < deadline, "nobody came"\n'
        "            time.sleep(0.005)\n"
    )
    folder = written_model(tmp_path, source)
    answers = {}
    with instance_of(folder, "one") as one, instance_of(folder, "two") as two:
        threads = [
            threading.Thread(target=lambda i=instance, n=name: answers.update({n: execute(i, request(ONE, id=n))[0]}))
            for name, instance in (("one", one), ("two", two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert answers["one"].outputs["OUTPUT0"] == answers["two"].outputs["OUTPUT0"] == 1


def test_an_instance_that_is_held_back_leaves_the_requests_to_a_healthy_one(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LONGEST_WAIT_S", -600.0)  # held back whenever it is asked
    source = """
        import os
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.first = args["model_instance_name"].endswith("_0")

            def execute(self, requests):
                if self.first:
                    os._exit(1)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]
    """
    written_model(tmp_path, source, extra="instance_group [ { count: 2 kind: KIND_CPU } ]")

    async def ask() -> list:
        async with core(tmp_path, load_model=("model",)) as server:
            asked = [core_infer(server, "model", {"INPUT0": ONE}) for _ in range(30)]
            return [await asyncio.gather(one, return_exceptions=True) for one in asked]

    answers = [answer for [answer] in asyncio.run(ask())]
    failed = [answer for answer in answers if isinstance(answer, ServingError)]
    assert len(failed) == 1, "the instance crashes once, and then draws no more requests"
