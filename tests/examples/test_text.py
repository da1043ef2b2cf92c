"""The text pipeline: raw text to a topic, through the server, as accurate on held-out messages as when it was trained."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray

from repository.config import model_config
from repository.config.validation import validate
from repository.core.layout import ModelRepository
from tests.support.serving_process import ROOT, ServerProcess

EXAMPLES = ModelRepository(ROOT / "examples" / "models")
MODELS = ["text_classifier", "text_pipeline", "text_tokenizer"]
REQUIRED_ACCURACY = 0.93


@pytest.fixture(scope="module")
def client() -> Iterator[triton.InferenceServerClient]:
    flags = ("--model-control-mode=explicit", "--load-model=text_pipeline")
    with ServerProcess(EXAMPLES.root, *flags) as server, triton.InferenceServerClient(server.http) as connection:
        yield connection


def classify(client: triton.InferenceServerClient, texts: list[bytes], classes: int = 0) -> NDArray:
    rows = np.array(texts, dtype=np.object_)[:, None]
    tensor = triton.InferInput("text", list(rows.shape), "BYTES")
    tensor.set_data_from_numpy(rows)
    wanted = [triton.InferRequestedOutput("scores", class_count=classes)]
    return client.infer("text_pipeline", [tensor], outputs=wanted).as_numpy("scores")


@pytest.mark.parametrize("name", MODELS)
def test_every_text_example_is_valid_as_it_stands(name: str) -> None:
    folder = EXAMPLES.existing_model_dir(name)
    assert validate(model_config.read(folder), name=name) == []
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1 << 20


def test_the_pipeline_is_accurate_on_messages_of_held_out_patterns(client: triton.InferenceServerClient) -> None:
    rows = json.loads((ROOT / "examples" / "holdout" / "messages.json").read_text())
    labels = (EXAMPLES.model_dir("text_pipeline") / "labels.txt").read_text().split()
    texts = [row["text"].encode() for row in rows]
    scores = np.concatenate([classify(client, texts[start : start + 16]) for start in range(0, len(texts), 16)])
    right = [labels[best] == row["topic"] for best, row in zip(scores.argmax(axis=1), rows, strict=True)]
    assert np.mean(right) >= REQUIRED_ACCURACY
    assert np.allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_a_row_has_the_same_scores_alone_and_beside_a_longer_one(client: triton.InferenceServerClient) -> None:
    short, long = b"Where is my parcel?", b"Where is my parcel? I ordered a lamp on Monday and it has not arrived. " * 3
    assert np.allclose(classify(client, [short, long])[0], classify(client, [short])[0], atol=1e-5)


def test_labels_come_with_the_classification_extension(client: triton.InferenceServerClient) -> None:
    (best,) = classify(client, [b"My card was charged twice, please refund 20 euros."], classes=1)[0]
    assert best.decode().endswith(":payment")


@pytest.mark.parametrize("text", [b"", b"!?", "日本語のテキスト".encode(), b"word " * 2000])
def test_any_text_has_an_answer(client: triton.InferenceServerClient, text: bytes) -> None:
    assert classify(client, [text]).shape == (1, 5)


def test_what_is_no_text_is_refused_in_one_sentence(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="step 'text_tokenizer': the text is not UTF-8"):
        classify(client, [b"\xff\xfe"])
