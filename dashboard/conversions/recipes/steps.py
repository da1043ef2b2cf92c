"""The models beside a converted one: a tokenizer or image processor in Python, and the ensemble of both.

Their configurations name models as @NAME@, which becomes the name that the person gave: @NAME@ is the ensemble.
"""

import json
from pathlib import Path
from typing import Any

from recipe import Refused, Work

BATCH = 32
LABELS = "labels.txt"
_PYTHON = Path(__file__).parent / "python_steps"


def tokenizer_step(
    work: Work, tokenizer: Any, *, limit: int, padded_to: int, names: list[str], samples: list[str], offsets: bool
) -> None:
    """Write the tokenizer with its truncation and padding as tokenizer.json, and the Python model that runs it."""
    inner = tokenizer.backend_tokenizer
    inner.enable_truncation(limit)
    inner.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=tokenizer.pad_token_id,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token,
        pad_to_multiple_of=padded_to,
    )
    inner.save(str(work.path("tokenizer.json", "tokenizer")))
    _python(work, "tokenizer", {"inputs": samples, "outputs": names, "offsets": offsets})
    outputs = [(name, "INT64", [-1]) for name in names] + ([("offsets", "INT64", [-1, 2])] if offsets else [])
    _write(
        work, "tokenizer", "@NAME@_tokenizer", 'backend: "python"', [(name, "STRING", [1]) for name in samples], outputs
    )


_RESIZED = ("do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize",
            "image_mean", "image_std", "crop_pct")  # fmt: skip


def image_step(work: Work, settings: dict[str, Any], shape: list[int]) -> None:
    """Write the Python model that does to an image what the image processor does with these settings."""
    kept = {name: settings[name] for name in _RESIZED if settings.get(name) is not None}
    edge = kept.get("size", {}).get("shortest_edge", 0)
    if share := kept.pop("crop_pct", 0):  # ConvNext's way: images below 384 are resized larger, then cropped
        both = {"height": edge, "width": edge}
        kept["size"] = {"shortest_edge": int(edge / share)} if edge < 384 else both
        kept |= {"do_center_crop": edge < 384, "crop_size": both}
    _python(work, "image_processor", {**kept, "resample": int(kept.get("resample", 2))})
    _write(
        work,
        "image_processor",
        "@NAME@_image_processor",
        'backend: "python"',
        [("image", "STRING", [1])],
        [("pixel_values", "FP32", shape)],
    )


def _python(work: Work, suffix: str, settings: dict[str, Any]) -> None:
    work.path("model.py", suffix).write_text((_PYTHON / f"{suffix}.py").read_text())
    work.path("settings.json", suffix).write_text(json.dumps(settings))


def config_of(work: Work) -> None:
    """Write the configuration of the converted model itself, as a step of the ensemble."""
    inputs, outputs = (
        [(one["name"], one["datatype"], one["shape"][1:]) for one in work.notes[side]] for side in ("inputs", "outputs")
    )
    _write(work, "model", "@NAME@_model", 'backend: "onnxruntime"', inputs, outputs)


def ensemble_of(
    work: Work, step: str, inputs: list[str], made: list[str], taken: list[str], *, passed: list[str]
) -> None:
    """Write the ensemble. made: the outputs of the step in Python, taken: those that the model takes, passed: those of the step
    that are the ensemble's outputs, too."""
    if set(taken) - set(made):
        raise Refused(f"the step '{step}' lacks {sorted(set(taken) - set(made))}", "convert the model alone")
    outputs = [(one["name"], one["datatype"], one["shape"][1:]) for one in work.notes["outputs"]]
    maps = [
        _step(f"@NAME@_{step}", inputs, [*taken, *passed]),
        _step("@NAME@_model", taken, [name for name, _, _ in outputs]),
    ]
    outputs += [(name, "INT64", [-1, 2]) for name in passed]
    body = 'platform: "ensemble"\nensemble_scheduling {\n  step [\n' + ",\n".join(maps) + "\n  ]\n}"
    _write(work, "ensemble", "@NAME@", body, [(name, "STRING", [1]) for name in inputs], outputs)
    work.note(ensemble={"step": step, "inputs": inputs, "outputs": [name for name, _, _ in outputs]})


def _step(model: str, inputs: list[str], outputs: list[str]) -> str:
    lines = [f'      model_name: "{model}"', "      model_version: -1"]
    lines += [f'      input_map {{ key: "{name}" value: "{name}" }}' for name in inputs]
    lines += [f'      output_map {{ key: "{name}" value: "{name}" }}' for name in outputs]
    return "    {\n" + "\n".join(lines) + "\n    }"


Tensors = list[tuple[str, str, list[int]]]


def _write(work: Work, suffix: str, name: str, body: str, inputs: Tensors, outputs: Tensors) -> None:
    labels = work.notes.get("class_names", {})
    rows = {"input": [_row(*one) for one in inputs], "output": []}
    for one, kind, dims in outputs:
        rows["output"].append(_row(one, kind, dims, LABELS if one in labels else ""))
        if one in labels:
            work.path(LABELS, suffix).write_text("\n".join(labels[one]) + "\n")
    parts = [f'name: "{name}"', f"max_batch_size: {BATCH}", body]
    parts += [f"{side} [\n" + ",\n".join(lines) + "\n]" for side, lines in rows.items()]
    if suffix != "ensemble":
        parts.append("dynamic_batching { }")
    work.path("config.pbtxt", suffix).write_text("\n".join(parts) + "\n")


def _row(name: str, kind: str, dims: list[int], labels: str = "") -> str:
    named = f' label_filename: "{labels}"' if labels else ""
    return f'  {{ name: "{name}" data_type: TYPE_{kind.replace("BYTES", "STRING")} dims: {dims}{named} }}'
