"""A folder of Hugging Face transformers -> ONNX, with its tokenizer or image processor as a step in Python before it.

Tasks: text classification, reranking (a classifier of pairs with one score), token classification, embeddings with their
pooling, image classification. The step and the model are an ensemble, so that a client sends a text or an image as it is. No
code of the folder runs: weights are read from safetensors, or as data (weights_only).
"""

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"

from recipe import Refused, Work, describe, main, opset, texts
from steps import config_of, ensemble_of, image_step, tokenizer_step

PACKAGES = "transformers torch onnxscript tokenizers safetensors onnx numpy"
ROWS = 6
PADDED_TO = 8  # rows of nearly the same length share a batch
_TASKS = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
}
_TEXTS = ["input_ids", "attention_mask", "token_type_ids"]


def convert(work: Work) -> None:
    """Convert the folder that has config.json."""
    root = min(_configs(work), key=lambda path: len(path.parts)).parent
    config = json.loads((root / "config.json").read_text())
    if config.get("auto_map"):
        raise Refused(
            "the model needs code of its own (auto_map in config.json), which is not run",
            "convert a model whose class is a part of transformers",
        )
    task = str(work.options.get("task") or task_of(root, config))
    work.note(task=task)
    if task == "image-classification":
        images(work, root)
    else:
        sentences(work, root, config, task)


def _configs(work: Work) -> list[Path]:
    found = [path for path in work.files() if path.name == "config.json"]
    if not found:
        raise Refused("the source has no config.json", "upload the complete folder of the model")
    return found


def task_of(root: Path, config: dict[str, Any]) -> str:
    architecture = next(iter(config.get("architectures") or ["an unknown class"]))
    task = next((task for ending, task in _TASKS.items() if architecture.endswith(ending)), "")
    if task == "text-classification" and len(config.get("id2label") or {0: "", 1: ""}) == 1:
        return "reranking"
    generates = architecture.endswith(("LMHeadModel", "HeadsModel"))
    if (
        not task
        and not generates
        and (architecture.endswith(("Model", "ForMaskedLM")) or (root / "modules.json").exists())
    ):
        return "embeddings"
    if not task:
        raise Refused(
            f"{architecture} is not converted: the tasks are classification of texts, tokens or images, reranking, embeddings",
            "convert a model of one of these tasks, or write a model.py that calls transformers",
        )
    return task


def loaded(kind: Any, root: Path) -> Any:
    """Load a model in FP32. Its attention is the plain one, which every exporter reads."""
    import torch

    safe = any(root.glob("*.safetensors"))
    if not safe and not any(root.glob("*.bin")):
        raise Refused("the folder has a config.json without weights", "upload model.safetensors, too")
    return kind.from_pretrained(root, attn_implementation="eager", use_safetensors=safe, dtype=torch.float32).eval()


# -- texts -------------------------------------------------------------------------------------------------------------
def sentences(work: Work, root: Path, config: dict[str, Any], task: str) -> None:
    """Convert a model of texts, and its tokenizer."""
    import torch
    import transformers

    kinds = {"token-classification": transformers.AutoModelForTokenClassification, "embeddings": transformers.AutoModel}
    model = loaded(kinds.get(task, transformers.AutoModelForSequenceClassification), root)
    tokenizer = _tokenizer(root)
    limit = _longest(root, config, tokenizer)
    takes = set(model.forward.__code__.co_varnames)
    names = [
        name for name in _TEXTS if name in takes and (name in tokenizer.model_input_names or name == "attention_mask")
    ]
    pooling, normalise = pooling_of(work, root) if task == "embeddings" else ("", False)
    output = {"embeddings": "sentence_embedding", "reranking": "score"}.get(task, "logits")
    wrapped = _wrapper(model, names, pooling, normalise)
    samples = {"text": texts(ROWS, _words(tokenizer), work.random, 9).reshape(-1, 1)}
    if task == "reranking":
        samples = {"query": texts(ROWS, _words(tokenizer), work.random, 4).reshape(-1, 1), **samples}
    tokens = tokenizer(
        *(rows.ravel().tolist() for rows in samples.values()),
        padding=True, truncation=True, max_length=limit, pad_to_multiple_of=min(PADDED_TO, limit), return_tensors="pt",
    )  # fmt: skip
    arrays = tuple(tokens.get(name, torch.ones_like(tokens["input_ids"])) for name in names)
    with torch.no_grad():
        answer = wrapped(*arrays).numpy()
    to_onnx(work, wrapped, arrays, names, output, {0: "batch", 1: "tokens"})
    offsets = task == "token-classification"
    tokenizer_step(
        work, tokenizer, limit=limit, padded_to=min(PADDED_TO, limit), names=names, samples=[*samples], offsets=offsets
    )
    step_outputs = [*names, *(["offsets"] if offsets else [])]
    labels = [str(model.config.id2label[at]) for at in sorted(model.config.id2label)]
    if task in ("text-classification", "token-classification"):
        work.note(scores=[output], class_names={output: labels})
    config_of(work)
    ensemble_of(work, "tokenizer", [*samples], step_outputs, names, passed=["offsets"] if offsets else [])
    work.write(samples, {output: answer})
    if task == "embeddings":
        work.note(pooling=pooling, normalised=normalise)


def _wrapper(model: Any, names: list[str], pooling: str, normalise: bool) -> Any:
    """Return a module with one output: logits, or the pooled embedding."""
    import torch

    class Single(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *arrays: Any) -> Any:
            given = dict(zip(names, arrays, strict=True))
            found = self.model(**given, return_dict=True)
            if not pooling:
                return found.logits
            states = found.last_hidden_state
            mask = given["attention_mask"].unsqueeze(-1).to(states.dtype)
            if pooling == "cls":
                vector = states[:, 0]
            elif pooling == "max":
                vector = (states + (mask - 1) * 1e9).max(1).values
            else:
                vector = (states * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(vector, dim=-1) if normalise else vector

    return Single().eval()


def pooling_of(work: Work, root: Path) -> tuple[str, bool]:
    """Return the pooling of an embedding, and whether it has length 1: the options', else those of sentence-transformers."""
    chosen = str(work.options.get("pooling") or "")
    normalise = any(root.glob("*_Normalize")) or "Normalize" in _text(root / "modules.json")
    found = ""
    for path in root.glob("*_Pooling/config.json"):
        modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}
        content = json.loads(path.read_text())
        found = next((name for name, key in modes.items() if content.get(key)), "")
        if not found:
            raise Refused("the folder's pooling is none of cls, mean and max", "choose one in the option 'pooling'")
    if not found and not chosen:
        work.warn("the folder does not say how tokens become one embedding, so that their mean was taken")
    wanted = str(work.options.get("normalise") or "")
    return chosen or found or "mean", wanted == "yes" if wanted else normalise


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _tokenizer(root: Path) -> Any:
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(root, use_fast=True)
    except (OSError, ValueError, ImportError, TypeError) as error:
        raise Refused(
            "the folder has no tokenizer that can be read", "upload tokenizer.json and tokenizer_config.json, too"
        ) from error
    if not tokenizer.is_fast:
        raise Refused(
            "the tokenizer is written in Python alone", "save it as a fast tokenizer, which writes tokenizer.json"
        )
    if tokenizer.pad_token is None:
        raise Refused("the tokenizer has no token for padding", "set pad_token, and save the tokenizer anew")
    return tokenizer


def _longest(root: Path, config: dict[str, Any], tokenizer: Any) -> int:
    """Return the most tokens that the model takes."""
    positions = int(config.get("max_position_embeddings") or 512)
    if "roberta" in str(config.get("model_type")) or config.get("model_type") in ("camembert", "mpnet"):
        positions -= 2  # the first positions are for padding
    own = json.loads(_text(root / "sentence_bert_config.json") or "{}").get("max_seq_length") or positions
    longest = int(min(positions, own, tokenizer.model_max_length))
    return longest - longest % PADDED_TO or longest


def _words(tokenizer: Any) -> list[str]:
    special = set(tokenizer.all_special_tokens)
    found = sorted(token for token in tokenizer.get_vocab() if token not in special and token.isalpha())
    return found[:2000] or ["some", "words"]


# -- images ------------------------------------------------------------------------------------------------------------
def images(work: Work, root: Path) -> None:
    """Convert a classifier of images, and its image processor."""
    import torch
    import transformers
    from PIL import Image

    model = loaded(transformers.AutoModelForImageClassification, root)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(root, use_fast=False)
    except (OSError, ValueError, ImportError) as error:
        raise Refused("the folder has no image processor", "upload preprocessor_config.json, too") from error
    pictures = [
        Image.fromarray(work.random.integers(0, 256, (int(tall), int(wide), 3), dtype=np.uint8))
        for tall, wide in work.random.integers(40, 200, (4, 2))
    ]
    files = [io.BytesIO() for _ in pictures]
    for picture, file in zip(pictures, files, strict=True):
        picture.save(file, "PNG")
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    wrapped = _wrapper(model, ["pixel_values"], "", False)
    with torch.no_grad():
        answer = wrapped(pixels).numpy()
    to_onnx(work, wrapped, (pixels,), ["pixel_values"], "logits", {0: "batch"})
    image_step(work, processor.to_dict(), list(pixels.shape[1:]))
    labels = [str(model.config.id2label[at]) for at in sorted(model.config.id2label)]
    work.note(scores=["logits"], class_names={"logits": labels})
    config_of(work)
    ensemble_of(work, "image_processor", ["image"], ["pixel_values"], ["pixel_values"], passed=[])
    work.write({"image": np.array([[file.getvalue()] for file in files], object)}, {"logits": answer})


# -- ONNX --------------------------------------------------------------------------------------------------------------
def to_onnx(
    work: Work, wrapped: Any, arrays: tuple[Any, ...], names: list[str], output: str, free: dict[int, str]
) -> None:
    """Write model.onnx by torch.export; by tracing, with a warning, where torch.export cannot read the architecture."""
    import torch

    path = work.path("model.onnx")
    common = {"input_names": names, "output_names": [output]}
    shapes = (dict.fromkeys(free, torch.export.Dim.DYNAMIC),) * len(arrays)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                program = torch.export.export(wrapped, arrays, dynamic_shapes=(shapes,), strict=False)
            torch.onnx.export(
                program,
                f=path,
                dynamo=True,
                opset_version=opset(work, 20, 18),
                external_data=False,
                verbose=False,
                **common,
            )
        except Refused:
            raise
        except Exception as error:
            work.warn(
                f"torch.export could not read the architecture ({type(error).__name__}), so that it was traced with one example"
            )
            axes: dict[str, Any] = dict.fromkeys(names, free) | {output: {0: "batch"}}
            torch.onnx.export(
                wrapped, arrays, path, dynamo=False, dynamic_axes=axes, opset_version=opset(work, 17, 9), **common
            )
    describe(work, path)


if __name__ == "__main__":
    main(convert, PACKAGES)
