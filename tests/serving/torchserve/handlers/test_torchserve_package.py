"""Modules that handlers import beside BaseHandler: images, texts, envelopes, micro-batches, labels."""

import base64
import importlib
import io
import json
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.serving.in_process import core
from tests.serving.torchserve.handlers.driving import ask
from tests.support.torchserve_archives import model

# What PyPI's torchvision does when it is imported beside a PyTorch without CUDA.
TORCHVISION = """
import torch

@torch.library.register_fake("torchvision::nms")
def fake(dets, scores, iou_threshold):
    return dets

from torchvision import transforms
"""


def context(folder: Path, **headers: str) -> Any:
    from ts.context import Context, RequestProcessor

    made = Context("net", str(folder), {"model": {"modelName": "net", "modelVersion": "1.0"}}, 2, None, "0.12.0")
    made.request_processor = [RequestProcessor(dict(headers))] * 2
    made.request_ids = {0: "first", 1: "second"}
    return made


class Compose:
    """Stands for torchvision's class of that name, which no machine of the tests has."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.tensor(list(image.tobytes()), dtype=torch.float32)


@pytest.fixture
def torchvision(importable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, transforms = types.ModuleType("torchvision"), types.ModuleType("torchvision.transforms")
    package.transforms = transforms  # type: ignore[attr-defined]
    transforms.Compose = Compose  # type: ignore[attr-defined]
    for name in ("Resize", "CenterCrop", "ToTensor", "Normalize"):
        setattr(transforms, name, lambda *given, **named: None)
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.transforms", transforms)


def handler_class(name: str, cls: str) -> Any:
    module = f"ts.torch_handler.{name}"
    sys.modules.pop(module, None)
    return getattr(importlib.import_module(module), cls)


def png() -> bytes:
    file = io.BytesIO()
    Image.new("L", (2, 1), 7).save(file, "PNG")
    return file.getvalue()


@pytest.mark.usefixtures("torchvision")
def test_images_come_as_bytes_in_base64_or_as_numbers_and_answers_name_their_classes() -> None:
    handler = handler_class("image_classifier", "ImageClassifier")()
    handler.device, handler.mapping = torch.device("cpu"), {"0": "cat", "1": "dog", "2": "cow"}
    handler.set_max_result_classes(2)
    rows = [{"body": bytearray(png())}, {"data": base64.b64encode(png()).decode()}, {"body": [7.0, 7.0]}]
    assert handler.preprocess(rows).tolist() == [[7.0, 7.0]] * 3
    ((first, second),) = [list(answer.items()) for answer in handler.postprocess(torch.tensor([[0.0, 2.0, 1.0]]))]
    assert (first[0], second[0]) == ("dog", "cow")
    assert first[1] == pytest.approx(0.66524, abs=1e-5)


@pytest.mark.usefixtures("torchvision")
def test_segments_and_boxes_have_the_shapes_of_torchserves_answers() -> None:
    segmenter = handler_class("image_segmenter", "ImageSegmenter")()
    (rows,) = segmenter.postprocess({"out": torch.tensor([[[[0.0, 5.0]], [[5.0, 0.0]]]])})
    assert [[pixel[0] for pixel in row] for row in rows] == [[1.0, 0.0]]
    detector = handler_class("object_detector", "ObjectDetector")()
    detector.mapping = {"1": "cat"}
    found = {
        "boxes": torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]]),
        "scores": torch.tensor([0.75, 0.25]),
        "labels": torch.tensor([1, 2]),
    }
    assert detector.postprocess([found]) == [[{"cat": [1.0, 2.0, 3.0, 4.0], "score": 0.75}]]


@pytest.mark.usefixtures("importable")
def test_missing_modules_raise_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="needs torchvision, which is not installed: run pip install torchvision"):
        handler_class("object_detector", "ObjectDetector")
    for name in ("ts.torch_handler.distributed.base_pippy_handler", "ts.handler_utils.distributed.pt_pippy"):
        with pytest.raises(ImportError, match="divides one model among several processes"):
            importlib.import_module(name)
    with pytest.raises(ImportError, match="needs vLLM"):
        importlib.import_module("ts.torch_handler.vllm_handler")


@pytest.mark.asyncio
async def test_a_torchvision_for_cuda_can_be_imported_beside_a_pytorch_without(tmp_path: Path) -> None:
    handler = """
        import importlib.util

        importlib.util.find_spec("torchvision")  # as transformers does before it imports it
        from torchvision import transforms

        def handle(data, context):
            return [transforms.NAME] * len(data or [])
    """
    files = {"torchvision/__init__.py": TORCHVISION, "torchvision/transforms.py": "NAME = 'found'\n"}
    model(tmp_path, "net", handler=handler, files=files)
    async with core(tmp_path, load_model=("net",)) as server:
        assert await ask(server, "net", b"") == b"found"


class IntegratedGradients:
    """Stands for captum's LayerIntegratedGradients: the second word counts twice as much as the others."""

    def __init__(self, model: Any, layer: Any) -> None:
        assert layer == "the layer"

    def attribute(self, inputs: Any, baselines: Any, additional_forward_args: Any, target: int) -> Any:
        assert (baselines.tolist(), additional_forward_args.tolist(), target) == ([0] * len(inputs), [0], 1)
        return torch.log(torch.tensor([[2.0, 2.0], [3.0, 1.0]]))


@pytest.fixture
def captum(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("captum")
    package.attr = types.SimpleNamespace(LayerIntegratedGradients=IntegratedGradients)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "captum", package)


@pytest.mark.usefixtures("captum")
def test_texts_are_cleaned_and_become_the_numbers_of_their_words_and_pairs(importable: Path) -> None:
    from ts.torch_handler.text_classifier import TextClassifier

    handler = TextClassifier()
    handler.device = torch.device("cpu")
    handler.source_vocab = {"<unk>": 0, "it": 1, "is": 2, "not": 3, "cafe": 4, "is not": 5}
    numbers, words = handler.preprocess([{"body": bytearray("<b>It&nbsp; isn't</b> Café!".encode())}])
    assert words == ["it", "is", "not", "cafe"]
    assert (
        handler._expand_contractions("I'd, he'll; how'd they, that'll can't've")
        == "I would, he will; how did they, thatll cannotve"
    )
    assert numbers.tolist() == [1, 2, 3, 4, 0, 5, 0]
    handler.model = types.SimpleNamespace(embedding="the layer")
    (explained,) = handler.explain_handle((numbers, words), [{"body": "It isn't Café!", "target": 1}])
    assert explained["words"] == words
    assert explained["importances"] == [
        pytest.approx([2**-1.5, 2**-1.5]),
        pytest.approx([0.75 / 2**0.5, 0.25 / 2**0.5]),
    ]
    torch.save({"a": 1}, importable / "source_vocab.pt")
    assert handler._load_vocabulary(handler.get_source_vocab_path(context(importable))) == {"a": 1}
    torch.save({"a": Path("x")}, importable / "source_vocab.pt")
    with pytest.raises(ImportError, match="needs torchtext"):
        handler._load_vocabulary(str(importable / "source_vocab.pt"))


@pytest.mark.parametrize(
    ("envelope", "bodies", "given", "answers"),
    [
        ("body", [b"1", b"2"], [b"1", b"2"], [b"1", b"2"]),
        (
            "json",
            [{"instances": [1, 2]}, b'{"instances": [3]}'],
            [1, 2, 3],
            ['{"predictions": [1, 2]}', '{"predictions": [3]}'],
        ),
        ("kserve", [{"instances": [1, 2]}], [1, 2], [{"predictions": [1, 2]}]),
    ],
)
def test_envelopes_are_opened_and_closed_around_a_handler(
    envelope: str, bodies: list[Any], given: list[Any], answers: list[Any], importable: Path
) -> None:
    module = importlib.import_module(f"ts.torch_handler.request_envelope.{envelope}")
    seen: list[Any] = []
    around = module.ENVELOPE(lambda data, _: seen.extend(data) or data)
    assert around.handle([{"body": body} for body in bodies], context(importable)) == answers
    assert seen == given
    if envelope == "kserve":
        explained = around.handle([{"body": bodies[0]}], context(importable, explain="True"))
        assert explained == [{"explanations": [1, 2]}]
    if envelope != "body":
        with pytest.raises(ValueError, match='the list "instances"'):
            around.handle([{"body": {}}], context(importable))


def test_bytes_come_in_base64_through_the_json_envelope(importable: Path) -> None:
    from ts.torch_handler.request_envelope.json import ENVELOPE

    seen: list[Any] = []
    around = ENVELOPE(lambda data, _: seen.extend(data) or ["x"] * len(data))
    instances = [{"b64": "aGk="}, {"image": {"b64": "aGk="}, "size": 2}]
    assert around.handle([{"body": {"instances": instances}}], context(importable)) == ['{"predictions": ["x", "x"]}']
    assert seen == [b"hi", {"image": b"hi", "size": 2}]


def test_the_envelope_of_kserves_second_protocol_keeps_names_shapes_and_ids(importable: Path) -> None:
    from ts.torch_handler.request_envelope.kservev2 import ENVELOPE

    inputs = [{"name": "x", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]}]
    around = ENVELOPE(lambda data, _: [torch.tensor(one["data"]) for one in data])
    mine, other = around.handle(
        [{"body": {"inputs": inputs, "id": "mine"}}, {"body": {"inputs": inputs}}], context(importable)
    )
    assert mine == {
        "id": "mine",
        "model_name": "net",
        "model_version": "1.0",
        "outputs": [{"name": "x", "datatype": "INT64", "data": [1, 2], "shape": [2, 1]}],
    }
    assert other["id"] == "second"
    assert json.dumps(mine)


def test_micro_batches_pass_the_three_methods_and_a_failure_ends_the_batch(importable: Path) -> None:
    from ts.handler_utils.micro_batching import MicroBatching
    from ts.torch_handler.base_handler import BaseHandler

    calls: list[tuple[str, list[int], int]] = []

    class Handler(BaseHandler):
        def preprocess(self, data: Any) -> Any:
            calls.append((threading.current_thread().name.split("_")[0], data, batching.get_micro_batch_idx()))
            return data

        def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
            if 9 in data:
                raise ValueError("nine")
            return [one * 2 for one in data]

        def postprocess(self, data: Any) -> Any:
            return data

    handler = Handler()
    batching = MicroBatching(handler, micro_batch_size=2)
    batching.parallelism = {"inference": 2}
    try:
        assert batching([1, 2, 3, 4, 5], context(importable)) == [2, 4, 6, 8, 10]
        assert calls == [("preprocess", [1, 2], 0), ("preprocess", [3, 4], 1), ("preprocess", [5], 2)]
        with pytest.raises(ValueError, match="nine"):
            batching([1, 2, 9], context(importable))
        with pytest.raises(ValueError, match="1 or more threads for each of"):
            batching.parallelism = {"infer": 1}
    finally:
        batching.shutdown()


def test_labels_come_from_both_forms_of_the_mapping_file(importable: Path) -> None:
    from ts.utils.util import load_label_mapping, map_class_to_label

    file = importable / "index_to_name.json"
    assert load_label_mapping(str(file)) is None
    file.write_text(json.dumps({"0": ["n01", "cat"], "1": "dog"}))
    assert load_label_mapping(str(file)) == {"0": "cat", "1": "dog"}
    file.write_text(json.dumps({"object_type_names": ["cat", "dog"]}))
    assert load_label_mapping(str(file)) == {"0": "cat", "1": "dog"}
    assert map_class_to_label([[0.1, 0.9]], {"0": "cat", "1": "dog"}, [[1, 0]]) == [{"dog": 0.1, "cat": 0.9}]
    assert map_class_to_label([[0.1, 0.9]]) == [{"0": 0.1, "1": 0.9}]


def test_handlers_of_texts_find_the_tokenizer_and_the_spellings_of_torchserves_own(importable: Path) -> None:
    from ts.handler_utils.text_utils import get_tokenizer
    from ts.torch_handler.text_handler import TextHandler
    from ts.utils.util import CLEANUP_REGEX

    handler = TextHandler()
    assert handler._tokenize('The best-known firm\'s "U.S." shares; (up)<br />') == [
        *("the", "best-known", "firm", "'", "s", "u", ".", "s", ".", "shares", "(", "up", ")")
    ]
    assert get_tokenizer(None)("A  b.") == ["A", "b."]
    assert handler._remove_puncutation("a, b!") == handler._remove_punctuation("a, b!") == "a b"
    assert handler.get_word_token(["\u0120a", "b"]) == ["a", "b"]
    assert CLEANUP_REGEX.sub("", "<b>a&#39;&amp;</b>b") == "ab"


class Streamer:
    """Stands for transformers' TextIteratorStreamer: each number of a word is its text."""

    def __init__(self, tokenizer: Any, skip_prompt: bool, timeout: float | None, **decode: Any) -> None:
        self.texts: list[str] = []

    def put(self, value: Any) -> None:
        self.texts.append(str(value.tolist()))

    def end(self) -> None:
        pass

    def __next__(self) -> str:
        if not self.texts:
            raise StopIteration
        return self.texts.pop(0)


def test_a_streamer_for_batches_gives_what_each_request_grows_by(
    importable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamers = types.ModuleType("transformers.generation.streamers")
    streamers.BaseStreamer, streamers.TextIteratorStreamer = object, Streamer  # type: ignore[attr-defined]
    for name in ("transformers", "transformers.generation"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, streamers.__name__, streamers)
    from ts.handler_utils.hf_batch_streamer import TextIteratorStreamerBatch

    streamer = TextIteratorStreamerBatch(None, 2, skip_prompt=True)
    streamer.put(torch.tensor([[1, 2], [3, 4]]))
    streamer.put(torch.tensor([5, 6]))
    with pytest.raises(ValueError, match="is for 2 requests"):
        streamer.put(torch.tensor([1]))
    streamer.end()
    assert list(streamer) == [[{"text": "[1, 2]"}, {"text": "[3, 4]"}], [{"text": "[5]"}, {"text": "[6]"}]]
