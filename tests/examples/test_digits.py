"""The example models: valid, and as accurate through the server as they were when they were trained."""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from PIL import Image

from repository.config import model_config
from repository.config.validation import validate
from repository.core.layout import ModelRepository
from tests.support.serving_process import ROOT, ServerProcess

EXAMPLES = ModelRepository(ROOT / "examples" / "models")
MODELS = ["digits", "digits_pipeline", "digits_preprocess", "digits_torch"]
REQUIRED_ACCURACY = 0.97


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(EXAMPLES.root) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(server.http) as connection:
        yield connection


@pytest.fixture(scope="module")
def held_out() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [n, 1, 8, 8] from 0 to 16, and their labels [n]: rows that no model was trained on."""
    rows = np.load(ROOT / "examples" / "holdout" / "digits.npz")
    return rows["images"][:, None].astype(np.float32), rows["labels"].astype(np.int64)


def infer(
    client: triton.InferenceServerClient,
    model: str,
    name: str,
    datatype: str,
    rows: NDArray,
    output: str,
    version: str = "",
) -> NDArray:
    """The named output for all rows, asked for in batches of 16."""
    answers = []
    for start in range(0, len(rows), 16):
        batch = rows[start : start + 16]
        tensor = triton.InferInput(name, list(batch.shape), datatype)
        tensor.set_data_from_numpy(batch)
        outputs = [triton.InferRequestedOutput(output)]
        answers.append(client.infer(model, [tensor], model_version=version, outputs=outputs).as_numpy(output))
    return np.concatenate(answers)


def picture(image: NDArray[np.float32], *, dark_on_light: bool) -> bytes:
    """An 8 x 8 image as a large PNG with a margin."""
    digit = Image.fromarray((image[0] * 255 / 16).astype(np.uint8)).resize((160, 160), Image.Resampling.BICUBIC)
    page = Image.new("L", (280, 280))
    page.paste(digit, (30, 80))
    if dark_on_light:
        page = page.point(lambda value: 255 - value)
    content = io.BytesIO()
    page.save(content, "PNG")
    return content.getvalue()


@pytest.mark.parametrize("name", MODELS)
def test_every_example_is_valid_as_it_stands(name: str) -> None:
    folder = EXAMPLES.existing_model_dir(name)
    config = model_config.read(folder)
    assert validate(config, name=name) == []
    for output in config.output:
        if output.label_filename:
            assert len((folder / output.label_filename).read_text().split()) == 10


def test_no_artefact_carries_paths_of_the_machine_it_was_made_on() -> None:
    for path in [*EXAMPLES.root.rglob("model.onnx"), *EXAMPLES.root.rglob("model.pt")]:
        content = path.read_bytes()
        assert b"site-packages" not in content
        assert str(Path.home()).encode() not in content


@pytest.mark.parametrize(
    ("model", "version", "output"),
    [("digits", "1", "logits"), ("digits", "2", "probabilities"), ("digits_torch", "", "logits__0")],
)
def test_a_digit_model_is_accurate_on_the_held_out_rows(
    client: triton.InferenceServerClient,
    held_out: tuple[NDArray[np.float32], NDArray[np.int64]],
    model: str,
    version: str,
    output: str,
) -> None:
    images, labels = held_out
    answers = infer(client, model, "image", "FP32", images, output, version)
    assert (answers.argmax(axis=1) == labels).mean() >= REQUIRED_ACCURACY


@pytest.mark.parametrize("dark_on_light", [False, True])
def test_the_pipeline_is_accurate_on_pictures_of_the_held_out_rows(
    client: triton.InferenceServerClient, held_out: tuple[NDArray[np.float32], NDArray[np.int64]], dark_on_light: bool
) -> None:
    images, labels = held_out
    pictures = np.array([[picture(image, dark_on_light=dark_on_light)] for image in images], dtype=np.object_)
    answers = infer(client, "digits_pipeline", "png", "BYTES", pictures, "probabilities")
    assert (answers.argmax(axis=1) == labels).mean() >= REQUIRED_ACCURACY


def _png(side: int = 8) -> bytes:
    picture = io.BytesIO()
    Image.new("1", (side, side)).save(picture, "PNG")
    return picture.getvalue()


@pytest.mark.parametrize("model", ["digits_preprocess", "digits_pipeline"])
@pytest.mark.parametrize(
    "content", [b"no picture", b"", _png()[:40], _png(6000)], ids=["text", "nothing", "half", "bomb"]
)
def test_what_is_no_picture_is_the_clients_mistake_said_in_one_sentence(
    client: triton.InferenceServerClient, model: str, content: bytes
) -> None:
    output = "image" if model == "digits_preprocess" else "probabilities"
    with pytest.raises(triton.InferenceServerException, match=r"the picture cannot be decoded: \w") as caught:
        infer(client, model, "png", "BYTES", np.array([[content]], dtype=np.object_), output)
    assert caught.value.status() == "400"
    assert "0x" not in caught.value.message()
    assert "object" not in caught.value.message()


def test_an_empty_pad_is_an_answer_too(client: triton.InferenceServerClient) -> None:
    blank = io.BytesIO()
    Image.new("RGBA", (280, 280)).save(blank, "PNG")
    rows = np.array([[blank.getvalue()]], dtype=np.object_)
    assert infer(client, "digits_pipeline", "png", "BYTES", rows, "image").max() == 0
