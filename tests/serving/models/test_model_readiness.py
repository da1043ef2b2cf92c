"""`is_ready` of Python models: how the server takes its answers, its failures and its silence."""

import asyncio
import os
import signal
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving.backends.child import supervisor
from serving.core.errors import ServingError
from serving.execution import readiness
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core, infer
from tests.serving.instances import IDENTITY, written_model
from tests.support.serving_process import new_descendants, wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.long]

X = {"INPUT0": np.ones((1, 1), np.float32)}
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]"


@pytest.fixture(autouse=True)
def patient(monkeypatch: Any) -> None:
    monkeypatch.setattr(readiness, "TIMEOUT_S", 60.0)


def model_with(repository: Path, body: str, extra: str = "", asynchronous: bool = False) -> None:
    """A model that answers with its input. `body` is that of is_ready; FOLDER is the repository's."""
    source = f"""
        import asyncio
        import pathlib
        import time
        import triton_python_backend_utils as pb_utils

        FOLDER = pathlib.Path({str(repository)!r})

        class TritonPythonModel:
            def initialize(self, args):
                self.name = args["model_instance_name"]
                self.loop = None

            async def execute(self, requests):
                self.loop = asyncio.get_running_loop()
                while (FOLDER / "hold").exists():
                    time.sleep(0.02)
                return [
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                    for request in requests
                ]

            {"async " if asynchronous else ""}def is_ready(self):
                with (FOLDER / "calls").open("a") as calls:
                    calls.write("x")
    """
    indented = textwrap.indent(textwrap.dedent(body), " " * 16)
    written_model(repository, f"{source}\n{indented}\n", extra=extra)


async def ready(server: InferenceServer) -> bool:
    return await server.confirm_model_ready("model")


def calls(repository: Path) -> int:
    path = repository / "calls"
    return len(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize(
    ("body", "reason", "asynchronous"),
    [
        ("return False", "is_ready returned False", False),
        ("return 1", "is_ready must return a boolean, not int", False),
        ("return None", "is_ready must return a boolean, not NoneType", True),
        ("raise RuntimeError('no database')", "no database", True),
    ],
)
async def test_a_model_that_does_not_say_yes_is_not_ready_but_serves(
    tmp_path: Path, caplog: Any, body: str, reason: str, asynchronous: bool
) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, body, asynchronous=asynchronous)
        await server.load_model("model")
        assert not await ready(server)
        assert not await ready(server)
        assert not await server.confirm_ready(), "strict readiness is that of every model"
        assert server.model_ready("model"), "the model is loaded all the same"
        assert (await infer(server, "model", X))["OUTPUT0"] == 1
        reported = [record.message for record in caplog.records if "is not ready" in record.message]
        assert len(reported) == 1, "the reason is told when it changes"
        assert reason in reported[0]


async def test_the_traceback_of_a_failing_is_ready_is_logged_once_and_not_with_each_probe(
    tmp_path: Path, caplog: Any
) -> None:
    def logged(line: str) -> int:
        return sum(record.message.endswith(line) for record in caplog.records if "is not ready" not in record.message)

    caplog.set_level("INFO")
    async with core(tmp_path) as server:
        model_with(tmp_path, "raise RuntimeError('again' if (FOLDER / 'other').exists() else 'first')")
        await server.load_model("model")
        for _ in range(3):
            assert not await ready(server)
        (tmp_path / "other").touch()
        assert not await ready(server)
        while not logged("RuntimeError: again"):
            await asyncio.sleep(0.02)
        assert logged("RuntimeError: first") == 1


async def test_a_model_becomes_ready_when_it_says_so(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "return (FOLDER / 'downloaded').exists()")
        await server.load_model("model")
        assert not await ready(server)
        (tmp_path / "downloaded").touch()
        assert await ready(server)
        assert await server.confirm_ready()


async def test_every_instance_must_agree(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "return self.name == 'model_0_0' or (FOLDER / 'both').exists()", extra=TWO)
        await server.load_model("model")
        assert not await ready(server)
        (tmp_path / "both").touch()
        assert await ready(server)


async def test_a_model_is_asked_while_it_executes_in_the_loop_of_its_coroutines(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "return self.loop in (None, asyncio.get_running_loop())", asynchronous=True)
        await server.load_model("model")
        assert await ready(server)
        await infer(server, "model", X)
        assert await ready(server)
        model_with(tmp_path, "return self.loop is not None")
        await server.load_model("model")
        (tmp_path / "hold").touch()
        try:
            running = asyncio.create_task(infer(server, "model", X))
            while not await ready(server):
                assert not running.done()
        finally:
            (tmp_path / "hold").unlink()
        assert (await running)["OUTPUT0"] == 1


@pytest.mark.parametrize("whole_server", [False, True])
async def test_where_a_reload_replaces_the_model_that_is_asked_its_successor_answers(
    tmp_path: Path, whole_server: bool
) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "time.sleep(600)")
        await server.load_model("model")
        asked = asyncio.create_task(server.confirm_ready() if whole_server else ready(server))
        while not calls(tmp_path):
            await asyncio.sleep(0.02)
        model_with(tmp_path, "return True")
        await server.load_model("model")
        assert await asked


async def test_silence_is_no_yes_and_the_call_under_way_is_shared(tmp_path: Path, monkeypatch: Any) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "while not (FOLDER / 'go').exists(): time.sleep(0.02)\nreturn True")
        await server.load_model("model")
        monkeypatch.setattr(readiness, "TIMEOUT_S", 0.2)
        assert await asyncio.gather(*(ready(server) for _ in range(5))) == [False] * 5
        assert not await ready(server)
        assert calls(tmp_path) <= 1
        monkeypatch.setattr(readiness, "TIMEOUT_S", 60.0)
        asked = asyncio.gather(*(ready(server) for _ in range(5)))
        (tmp_path / "go").touch()
        assert await asked == [True] * 5
        assert calls(tmp_path) == 1
        assert await ready(server)
        assert calls(tmp_path) == 2


async def test_a_model_may_ask_for_another_ones_readiness_in_its_own(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        model_with(tmp_path, "return pb_utils.is_model_ready('other')")
        await server.load_model("model")
        assert not await ready(server)
        written_model(tmp_path, IDENTITY, name="other")
        await server.load_model("other")
        assert await ready(server)


async def test_a_process_that_has_ended_is_not_ready_and_its_successor_is(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        model_with(
            tmp_path,
            "(FOLDER / 'asked').touch(); time.sleep(0 if (FOLDER / 'go').exists() else 60); return True",
        )
        await server.load_model("model")
        asked = asyncio.create_task(ready(server))
        await asyncio.to_thread(wait_until, (tmp_path / "asked").exists)
        (tmp_path / "go").touch()
        [process] = new_descendants()
        os.kill(process, signal.SIGKILL)
        assert not await asked
        assert not await ready(server), "nobody has noticed yet, nor begun another"
        await infer(server, "model", X)
        assert await ready(server)


async def test_a_model_without_the_method_is_ready_when_it_is_loaded(tmp_path: Path) -> None:
    async with core(tmp_path) as server:
        written_model(tmp_path, IDENTITY)
        assert not await ready(server)
        await server.load_model("model")
        assert await ready(server)


async def test_a_model_whose_process_keeps_ending_is_not_ready_while_its_start_is_held_back(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_WAIT_S", 0.5)
    source = IDENTITY.replace("return [", "__import__('os')._exit(1)\n            return [")
    written_model(tmp_path, source)
    async with core(tmp_path) as server:
        await server.load_model("model")
        assert await ready(server)
        for _ in range(5):  # at once, after 1 s, ...
            with pytest.raises(ServingError):
                await infer(server, "model", X)
            if not await ready(server):
                return
        raise AssertionError("it stayed ready")
