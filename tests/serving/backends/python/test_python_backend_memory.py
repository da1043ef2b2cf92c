"""Shared memory and processes of the Python backend: copied once, freed, nothing left behind."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from serving.backends.channel.shared_memory import KEEP_BYTES, SharedMemoryPool
from tests.serving.instances import IDENTITY, execute, infer, instance_of, python_instance, request, written_model
from tests.support.model_factory import python_model
from tests.support.serving_process import (
    PATIENCE_S,
    ROOT,
    ServerProcess,
    descendants,
    new_descendants,
    open_files,
    wait_until,
)

pytestmark = pytest.mark.long
MIB = 1 << 20


def peak_of(pid: int) -> int:
    """Peak resident memory in bytes, shared memory included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def reset_peak(pid: int) -> int:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak_of(pid)


def memory_files(pid: int) -> list[str]:
    """The memory files that a process maps. The test's own may have those of servers that other tests keep in it."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return [line for line in maps.splitlines() if "memfd:slipway" in line]


def named_memory(pid: int) -> set[str]:
    """What a process maps or holds open in /dev/shm, where other programs of the machine come and go too."""
    maps = [line.split(maxsplit=5)[5:] for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return {name for name in (*(name for [name] in filter(None, maps)), *files) if name.startswith("/dev/shm/")}


def test_a_256_mb_tensor_is_copied_once_in_each_direction(tmp_path):
    """The child holds input and output (2 x), the server the client's array, the input and the output (2 x more)."""
    array = np.ones((1, 64 * MIB), np.float32)
    with python_instance(tmp_path, IDENTITY) as instance:
        infer(instance, array[:, :1])
        [child] = new_descendants()
        before, child_before = reset_peak(os.getpid()), reset_peak(child)
        output = infer(instance, array)["OUTPUT0"]
        grown, child_grown = peak_of(os.getpid()) - before, peak_of(child) - child_before
        assert np.array_equal(output[0, ::4096], array[0, ::4096])
        assert grown < 1.2 * array.nbytes, f"the server grew by {grown / MIB:.0f} MiB"
        assert child_grown < 2.2 * array.nbytes, f"the child grew by {child_grown / MIB:.0f} MiB"
        del output
        gc.collect()
        assert not [line for line in memory_files(os.getpid()) if size_of(line) > KEEP_BYTES], "the server lets go"
        infer(instance, array[:, :1])
        assert not [line for line in memory_files(child) if size_of(line) > KEEP_BYTES], "and so does the child"


def size_of(line: str) -> int:
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    return end - start


def test_an_output_stays_the_same_while_it_is_referred_to(tmp_path):
    """A slow client's response must not change when later batches are written."""
    arrays = [np.full((1, 100_000), value, np.float32) for value in range(6)]
    with python_instance(tmp_path, IDENTITY) as instance:
        outputs = [infer(instance, array)["OUTPUT0"] for array in arrays]
        for output, array in zip(outputs, arrays, strict=True):
            assert np.array_equal(output, array)
    for output, array in zip(outputs, arrays, strict=True):
        assert np.array_equal(output, array), "even after the instance has gone"


def test_memory_is_used_again_and_does_not_pile_up(tmp_path):
    array, before = np.ones((1, 300_000), np.float32), set(memory_files(os.getpid()))
    with python_instance(tmp_path, IDENTITY) as instance:
        for size in (10, 1000, 100_000, 300_000):
            infer(instance, array[:, :size])
        [child] = new_descendants()
        for _ in range(50):
            infer(instance, array)
        assert len(set(memory_files(os.getpid())) - before) <= 4
        assert len(memory_files(child)) <= 4


def test_nothing_lies_in_dev_shm_nor_open_after_closing(tmp_path):
    mapped, before, files = named_memory(os.getpid()), set(memory_files(os.getpid())), open_files()
    with python_instance(tmp_path, IDENTITY) as instance:
        infer(instance, np.ones((1, 100_000), np.float32))
        [child] = new_descendants()
        assert memory_files(child)
        assert not named_memory(child)
        assert named_memory(os.getpid()) <= mapped
    wait_until(lambda: open_files() <= files, what="the end of every descriptor")
    assert set(memory_files(os.getpid())) <= before


def test_ten_starts_and_ends_leave_no_descriptor(tmp_path):
    folder = written_model(tmp_path, IDENTITY)
    files = open_files()
    for _ in range(10):
        with instance_of(folder) as instance:
            execute(instance, request(np.ones((1, 4), np.float32)))
    wait_until(lambda: open_files() <= files, what="the end of every descriptor")
    assert not new_descendants()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_child_outlives_a_killed_server_even_inside_execute(tmp_path, number):
    """A program with two instances, one of them hanging in execute, is killed."""
    source = IDENTITY.replace(
        "return [", "import time; time.sleep(600 if requests[0].request_id() else 0)\n            return ["
    )
    folder = written_model(tmp_path, source)
    program = f"""
        import threading
        import numpy as np
        from pathlib import Path
        from tests.serving.instances import execute, instance_of, request

        with instance_of(Path({str(folder)!r}), "idle") as idle, instance_of(Path({str(folder)!r}), "hung") as hung:
            execute(idle, request(np.ones((1, 1), np.float32)))
            threading.Timer(0.2, print, ["executing"], {{"flush": True}}).start()
            execute(hung, request(np.ones((1, 1), np.float32), id="hang"))
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"executing\n"
        children = descendants(process.pid)
        assert len(children) == 2
    finally:
        process.send_signal(number)
        process.wait(PATIENCE_S)
        process.stdout.close()
    wait_until(lambda: not any(alive(child) for child in children), what="the end of the children")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_child_sees_no_secret_of_the_servers_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgres://user:password@host/db")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("HF_HOME", "/models/hf")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    source = """
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                names = np.array(sorted(os.environ), object)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", names)]) for _ in requests]
    """
    with python_instance(tmp_path, source, outputs=[("OUTPUT0", "BYTES", [-1])]) as instance:
        names = {name.decode() for name in infer(instance, np.ones((1, 1), np.float32))["OUTPUT0"]}
    assert {"PATH", "HF_HOME", "OMP_NUM_THREADS"} <= names
    assert not names & {"DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"}


@pytest.mark.parametrize(("flags", "seen"), [((), True), (("--model-environment=bounded",), False)])
def test_models_see_the_environment_of_a_server_that_stands_alone(tmp_path, flags, seen):
    """As in Triton. `manage.py up` bounds it: there it is the dashboard's environment too."""
    source = """
        import os
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.add_output({"name": os.environ.get("TENANT_KEY", "none"), "data_type": "TYPE_BOOL", "dims": [1]})
                return config

            def execute(self, requests):
                seen = np.array(["TENANT_KEY" in os.environ])
                return [pb_utils.InferenceResponse([pb_utils.Tensor(r.requested_output_names()[0], seen)]) for r in requests]
    """
    python_model(tmp_path, "tells", source, None)
    with ServerProcess(tmp_path, *flags, environment={"TENANT_KEY": "blue"}) as server:
        status, answer = server.post("/v2/models/tells/infer", {"inputs": []})
    name = "blue" if seen else "none"
    assert (status, [(one["name"], one["data"]) for one in answer["outputs"]]) == (200, [(name, [seen])])


def test_a_segment_is_given_out_again_only_after_its_release():
    pool = SharedMemoryPool()
    first, second = pool.acquire(100), pool.acquire(100)
    assert first.id != second.id
    pool.release(first.id)
    pool.release(first.id)
    assert pool.acquire(100) is first
    assert pool.acquire(100) not in (first, second)
    pool.close()


def test_a_segment_above_the_limit_is_used_once():
    pool = SharedMemoryPool()
    segment = pool.acquire(KEEP_BYTES + 1)
    pool.sent(segment)
    pool.release(segment.id)
    assert pool.acquire(KEEP_BYTES + 1).id != segment.id
    pool.close()


COUNTED = """
    import c_python_backend_utils as c_utils
    import numpy as np
    import triton_python_backend_utils as pb_utils

    assert c_utils.Tensor is pb_utils.Tensor and c_utils.TritonModelException is pb_utils.TritonModelException

    class TritonPythonModel:
        def execute(self, requests):
            free = np.array([[c_utils.shared_memory.free_memory()]], np.int64)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", free)]) for _ in requests]
"""


def test_a_process_that_was_killed_leaves_no_shared_memory_in_use(tmp_path: Path) -> None:
    """Triton's own test of restarts checks the same: as much shared memory is free afterwards as before."""
    pbtxt = """backend: "python" max_batch_size: 1 input { name: "IN" data_type: TYPE_INT64 dims: 1 }
        output { name: "OUT" data_type: TYPE_INT64 dims: 1 }"""
    python_model(tmp_path, "counted", COUNTED, pbtxt)
    body = {"inputs": [{"name": "IN", "shape": [1, 1], "datatype": "INT64", "data": [1]}]}

    def reported() -> list[int]:
        found = []
        for _ in range(3):
            status, answer = server.post("/v2/models/counted/infer", body)
            assert status == 200, answer
            found.append(answer["outputs"][0]["data"][0])
        return found

    with ServerProcess(tmp_path) as server:
        before = reported()
        [child] = server.model_processes()
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: server.model_processes() - {child})
        wait_until(lambda: server.get("/v2/models/counted/ready")[0] == 200)
        assert reported() == before
