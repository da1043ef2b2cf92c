"""Finding and unpacking an archive, and making its handler: forms of archives and handlers, packages of its own."""

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from serving.core.errors import ServingError
from serving.server.inference_server import InferenceServer
from tests.serving.in_process import core
from tests.serving.torchserve.handlers.driving import ask, send
from tests.support.torchserve_archives import NOOP, files_of, model

CLASS = """
class Base:
    def initialize(self, context):
        self.said = f"{context.model_name} {context.manifest['model']['modelVersion']} {open('labels.txt').read()}"

    def handle(self, data, context):
        return [self.said] * len(data)

class Service(Base):
    pass
"""
FUNCTION = """
seen = []

def answer(data, context):
    if data is None:
        seen.append(context.model_yaml_config["handler"][1])
        return None
    return seen * len(data)
"""
PACKAGE = "NAME = 'own'\n"


def wheel(name: str) -> bytes:
    """A package that pip installs without building it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr(f"{name}.py", PACKAGE)
        packed.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        packed.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return file.getvalue()


async def loaded(tmp_path: Path, body: bytes = b"") -> bytes:
    async with core(tmp_path, load_model=("one",)) as server:
        return await ask(server, "one", body)


async def load_error(server: InferenceServer, name: str) -> str:
    with pytest.raises(ServingError) as raised:
        await server.load_model(name)
    return raised.value.message


@pytest.mark.asyncio
async def test_a_service_class_of_its_own_is_made_in_the_archives_folder(tmp_path: Path) -> None:
    model(tmp_path, "one", handler=CLASS, version="v2", files={"labels.txt": "cat"})
    assert await loaded(tmp_path) == b"one v2 cat"


@pytest.mark.asyncio
async def test_a_service_may_get_its_handle_when_it_is_made(tmp_path: Path) -> None:
    handler = """
        class Service:
            def __init__(self):
                self.handle = lambda data, context: [self.said] * len(data)

            def initialize(self, context):
                self.said = "made"
    """
    model(tmp_path, "one", handler=handler)
    assert await loaded(tmp_path) == b"made"


@pytest.mark.asyncio
async def test_a_named_function_is_called_once_without_data_and_sees_yaml_as_python_reads_it(tmp_path: Path) -> None:
    files = {"model-config.yaml": "handler: {1: one}\n"}
    model(tmp_path, "one", handler=FUNCTION, handler_name="handler:answer", files=files, configFile="model-config.yaml")
    assert await loaded(tmp_path) == b"one"


@pytest.mark.asyncio
async def test_a_handler_is_found_without_the_folder_that_it_was_packed_from_and_may_leave_parts_encoded(
    tmp_path: Path,
) -> None:
    handler = "import os\nos.environ['TS_DECODE_INPUT_REQUEST'] = 'false'\n" + NOOP.replace(
        "next(iter(row.values()))", "[type(value).__name__ for value in row.values()]"
    )
    model(tmp_path, "one", handler=handler, handler_name="src/handler.py:handle")
    parts = [("a", "application/json", b"{}"), ("b", "text/plain", b"b"), ("c", None, b"c")]
    async with core(tmp_path, load_model=("one",)) as server:
        answer = await send(server, "one", parts)
    assert json.loads(answer.outputs["data"][0, 0]) == ["bytearray"] * 3


@pytest.mark.asyncio
async def test_an_archive_that_lies_unpacked_serves_and_stays_as_it_is(tmp_path: Path) -> None:
    handler = "def handle(data, context):\n    open('written', 'w').close()\n    return data and ['x'] * len(data)\n"
    for name, content in files_of("one", handler=handler).items():
        path = tmp_path / "one" / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert await loaded(tmp_path) == b"x"
    assert sorted(os.listdir(tmp_path / "one" / "1")) == ["MAR-INF", "handler.py"]


@pytest.mark.asyncio
async def test_a_service_envelope_stands_around_the_handler(tmp_path: Path) -> None:
    pbtxt = 'parameters { key: "torchserve.service_envelope" value { string_value: "kserve" } }\n'
    model(
        tmp_path, "one", handler="def handle(data, context):\n    return [one * 2 for one in data or []]\n", pbtxt=pbtxt
    )
    assert await loaded(tmp_path, b'{"instances": [1, 2]}') == b'{\n  "predictions": [\n    2,\n    4\n  ]\n}'


@pytest.mark.asyncio
async def test_requirements_are_installed_for_the_model_alone_where_the_configuration_wants_it(tmp_path: Path) -> None:
    handler = "try:\n    from slipway_own_package import NAME\nexcept ImportError:\n    NAME = 'none'\n" + NOOP.replace(
        "next(iter(row.values()))", "NAME"
    )
    files: dict[str, Any] = {
        "requirements.txt": "./slipway_own_package-1.0-py3-none-any.whl\n",
        "slipway_own_package-1.0-py3-none-any.whl": wheel("slipway_own_package"),
    }
    wanted = 'parameters { key: "torchserve.install_py_dep_per_model" value { string_value: "true" } }\n'
    parts = {"handler": handler, "requirementsFile": "requirements.txt"}
    model(tmp_path, "with", files=files, pbtxt=wanted, **parts)
    model(tmp_path, "without", files=files, **parts)
    model(tmp_path, "wrong", files=files | {"requirements.txt": "./gone-1.0-py3-none-any.whl\n"}, pbtxt=wanted, **parts)
    async with core(tmp_path, load_model=("with", "without")) as server:
        assert await ask(server, "with", b"") == b"own"
        assert await ask(server, "without", b"") == b"none"
        assert "requirements.txt of the archive cannot be installed: ERROR" in await load_error(server, "wrong")


@pytest.mark.asyncio
async def test_a_handler_that_cannot_be_made_fails_the_load_with_its_own_place_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = tmp_path / "tmp"
    unpacked.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(unpacked))
    repository = tmp_path / "models"
    cases = {
        "imports": ("import gone_module\n", "No module named 'gone_module' (handler.py, line 1"),
        "raises": (
            "def handle(data, context):\n    raise ValueError('boom')\n",
            "ValueError: boom (handler.py, line 2",
        ),
        "exits": ("import os\nos._exit(7)\n", "exit status 7"),
        "empty": ("x = 1\n", "no class that handles"),
        "mute": ("class Service:\n    pass\n", "the handler's class 'Service' has no method 'handle'"),
        "two": (CLASS + "class Other(Base):\n    pass\n", "several classes that handle: Other, Service"),
        "syntax": ("def handle(:\n", "SyntaxError: invalid syntax (handler.py, line 1)"),
    }
    for name, (handler, _) in cases.items():
        model(repository, name, handler=handler, files={"labels.txt": ""})
    model(repository, "missing", handler="", handler_name="gone.py")
    model(repository, "slow", handler="import time\ntime.sleep(600)\n", config={"startupTimeout": 1})
    async with core(repository) as server:
        for name, (_, sentence) in cases.items():
            assert sentence in await load_error(server, name), name
        assert "the archive has no handler 'gone.py'" in await load_error(server, "missing")
        assert "took longer than 1 s to start" in await load_error(server, "slow")
    assert os.listdir(unpacked) == []
