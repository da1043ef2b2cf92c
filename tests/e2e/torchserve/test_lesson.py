"""The lesson's TorchServe part as it is written: script and trace, handler, archiver, properties, start, client.

What is changed: random weights for downloaded ones, free ports, and two properties without which TorchServe itself, since
0.11.1, refuses the lesson's client, which knows no tokens and registers a model. `torchserve` is the one in `bin`.
"""

import base64
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.servers.environments import made
from tests.e2e.torchserve.torchvision_for_cpu import python_path
from tests.support.ports import free_ports
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until

pytestmark = [pytest.mark.long]

SEED = Path(__file__).with_name("seed")
BESIDE = "\ngrpc_inference_port={}\ngrpc_management_port={}\ndisable_token_authorization=true\nenable_model_api=true\n"
MEAN, DEVIATION = ([[[0.485]], [[0.456]], [[0.406]]], [[[0.229]], [[0.224]], [[0.225]]])


class Lesson:
    """Its files in a folder, the model packed and served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "lesson"
        shutil.copytree(SEED, self.folder)
        self.ports = dict(zip((8080, 8081, 8082, 7070, 7071), free_ports(5), strict=True))
        self._write()
        commands = folder / "commands"
        commands.mkdir()
        (commands / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (commands / "python").chmod(0o755)
        self.variables = os.environ | {
            "PATH": f"{commands}:{ROOT / 'bin'}:{made('torchserve') / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": python_path(folder / "python"),
            "TMPDIR": str(folder),
        }

    def _write(self) -> None:
        self.change("save_model_for_torchserve.py", "pretrained=True", "pretrained=False")
        for wanted in (8080, 8081, 8082):
            self.change("torchserve_config.properties", f":{wanted}", f":{self.ports[wanted]}")
        with (self.folder / "torchserve_config.properties").open("a") as file:
            file.write(BESIDE.format(self.ports[7070], self.ports[7071]))
        (self.folder / "imagenet_classes.txt").write_text("".join(f"class {number}\n" for number in range(1000)))
        (self.folder / "model_store").mkdir()
        pixels = np.random.default_rng(0).integers(0, 255, (256, 256, 3), np.uint8)
        Image.fromarray(pixels).save(self.folder / "cat.png")

    def change(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def run(self, *command: str) -> None:
        # Into a file: a server in the background goes on writing there, and a pipe of it would end with the server only.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.variables,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=5 * PATIENCE_S,
                check=False,
            )
            output.seek(0)
            assert done.returncode == 0, output.read()

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def client(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("torchserve_client", self.folder / "torchserve_client.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    @cached_property
    def expected(self) -> dict[str, Any]:
        """Return the answer for the image, computed here: 256 pixels need no resizing, and the middle 224 are taken."""
        pixels = torch.from_numpy(np.asarray(Image.open(self.folder / "cat.png")).copy()).permute(2, 0, 1)[
            :, 16:240, 16:240
        ]
        rows = (pixels / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what the lesson has
            model = torch.jit.load(self.folder / "resnet50_scripted.pt")
        best = torch.softmax(model(rows[None]), 1)[0].topk(5)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {
            "predictions": [
                {"label": f"class {index}", "probability": pytest.approx(value, rel=1e-3)} for index, value in pairs
            ]
        }


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lesson]:
    lesson = Lesson(tmp_path_factory.mktemp("lesson"))
    lesson.run("python", "-W", "ignore", "save_model_for_torchserve.py")
    lesson.run("bash", "package.sh")
    lesson.run("bash", "start.sh")
    try:
        yield lesson
    finally:
        lesson.run("torchserve", "--stop")


def listening(lesson: Lesson) -> bool:
    try:
        return httpx.get(f"{lesson.url(8080)}/ping", timeout=PATIENCE_S).is_success
    except httpx.TransportError:
        return False


def test_the_lesson_predicts_lists_and_registers(lesson: Lesson) -> None:
    wait_until(lambda: listening(lesson), what="torchserve --start's answering")
    client = lesson.client()
    assert client.predict_torchserve(str(lesson.folder / "cat.png"), lesson.url(8080)) == lesson.expected
    assert client.list_models(lesson.url(8081)) == {"models": [{"modelName": "resnet50", "modelUrl": "resnet50.mar"}]}
    client.register_model(lesson.url(8081), "resnet50.mar", "again")
    assert [model["modelName"] for model in client.list_models(lesson.url(8081))["models"]] == ["again", "resnet50"]
    assert client.predict_torchserve(str(lesson.folder / "cat.png"), lesson.url(8080), "again") == lesson.expected


def test_the_lessons_batching_is_what_the_model_has(lesson: Lesson) -> None:
    wait_until(lambda: listening(lesson), what="torchserve --start's answering")
    (described,) = httpx.get(f"{lesson.url(8081)}/models/resnet50", timeout=PATIENCE_S).json()
    assert (described["batchSize"], described["maxBatchDelay"]) == (16, 10)
    image = (lesson.folder / "cat.png").read_bytes()
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: httpx.post(
                    f"{lesson.url(8080)}/predictions/resnet50", content=image, timeout=PATIENCE_S
                ).json(),
                range(8),
            )
        )
    assert answers == [lesson.expected] * 8


def test_the_lessons_handler_takes_base64_text(lesson: Lesson) -> None:
    wait_until(lambda: listening(lesson), what="torchserve --start's answering")
    text = base64.b64encode((lesson.folder / "cat.png").read_bytes())
    answer = httpx.post(
        f"{lesson.url(8080)}/predictions/resnet50",
        content=text,
        headers={"Content-Type": "text/plain"},
        timeout=PATIENCE_S,
    )
    assert answer.json() == lesson.expected


def test_the_lesson_stops_as_torchserve_does(lesson: Lesson) -> None:
    lesson.run("torchserve", "--stop")
    wait_until(lambda: not listening(lesson), what="the end of the server")
