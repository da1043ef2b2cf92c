"""Finding code: by configuration and files together, version by version, and by the content of a file."""

from pathlib import Path

import pytest

from repository.config import model_config
from repository.files import code_execution
from repository.files.code_execution import Contents, code_in

ONNX = b"\x08\x08\x12\x04onnx"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Versions 1 and 2, ONNX both."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.onnx").write_bytes(ONNX)
    return tmp_path


def places(model: Path, text: str) -> list[str]:
    return sorted(one.where for one in code_execution.runs(model_config.parse(text), code_execution.contents_of(model)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ('backend: "onnxruntime"', []),
        ('platform: "onnxruntime_onnx"', []),
        ('backend: "onnxruntime" default_model_filename: "other.bin"', []),
        ('platform: "ensemble" ensemble_scheduling { step { model_name: "a" } }', []),
        ('backend: "python" ensemble_scheduling { step { model_name: "a" } }', ["1/", "2/"]),
        ('backend: "python" default_model_filename: "model.onnx"', ["1/model.onnx", "2/model.onnx"]),
        ('backend: "ONNXRuntime"', ["1/", "2/"]),
        ('default_model_filename: "model.py"', ["1/model.py", "2/model.py"]),
        ('default_model_filename: "model.unknown"', ["1/", "2/"]),
        ('parameters { key: "execution_ENV_path" value { string_value: "x" } }', ['parameters["execution_ENV_path"]']),
    ],
)
def test_each_setting_that_runs_code_is_found(model: Path, text: str, expected: list[str]) -> None:
    assert sorted(set(places(model, text))) == expected


def test_each_version_is_completed_from_its_own_files(model: Path) -> None:
    (model / "2" / "model.onnx").rename(model / "2" / "model.py")
    assert places(model, "") == ["2/model.py"]
    assert places(model, 'backend: "onnxruntime"') == []


def test_the_first_file_of_a_default_name_decides_as_in_the_server(model: Path) -> None:
    (model / "1" / "model.py").touch()
    assert places(model, "") == []
    (model / "1" / "model.onnx").unlink()
    assert places(model, "") == ["1/model.py"]


def test_an_overlay_counts_for_its_version(model: Path) -> None:
    overlay = 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "env" } }'
    (model / "2" / "slipway.pbtxt").write_text(overlay)
    (found,) = code_execution.runs(model_config.parse(""), code_execution.contents_of(model))
    assert "for version 2" in found.sentence
    (model / "2" / "slipway.pbtxt").write_text('backend: "python"')  # which no server takes
    assert places(model, "") == []


def test_a_custom_configuration_counts_as_well(model: Path) -> None:
    (model / "configs").mkdir()
    (model / "configs" / "mine.pbtxt").write_text('backend: "pytorch" default_model_filename: "w"')
    assert places(model, "") == ["configs/mine.pbtxt: 1/w", "configs/mine.pbtxt: 2/w"]


def test_new_files_are_data_only_where_something_names_them(model: Path) -> None:
    for name in ("weights", "more", "cc.onnx", "slipway.pbtxt"):
        (model / "1" / name).write_bytes(b"")
    beside = dict.fromkeys(
        ("labels.txt", "warmup/x", "initial_state/s", "env", "configs/a.pbtxt", "configs/a.py"), model / "1" / "more"
    )
    text = """backend: "onnxruntime" cc_model_filenames { key: "9.0" value: "cc.onnx" }
output { name: "y" label_filename: "labels.txt" }
model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { input_data_file: "x" } } }
sequence_batching { state { input_name: "a" initial_state { data_file: "s" } } }
"""
    config = model_config.parse(text)
    found = code_execution.could_run(config, 1, model / "1", beside, named=["weights"])
    assert sorted(one.where for one in found) == ["1/more", "configs/a.py", "env"]
    ensemble = model_config.parse('platform: "ensemble"')
    found = code_execution.could_run(ensemble, 1, model / "1", {}, named=[])
    assert sorted(one.where for one in found) == ["1/cc.onnx", "1/model.onnx", "1/more", "1/weights"]


@pytest.mark.parametrize(
    "name",
    [
        "a.py",
        "A.PYC",
        "lib.so",
        "lib.so.1.2",
        "x.pt",
        "x.PTH",
        "deep/er/x.plan",
        "m.pkl",
        "env.tar.gz",
        "w.npy",
        "x.pb",
    ],
)
def test_a_name_can_show_code(name: str) -> None:
    assert code_in(name)


@pytest.mark.parametrize(
    "name", ["model.onnx", "weights.bin", "labels.txt", "vocab.json", "x.data", "so", "py", "README.md"]
)
def test_a_name_can_leave_it_open(name: str) -> None:
    assert not code_in(name)


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04rest",
        b"\x7fELF\x02",
        b"#!/bin/sh\n",
        b"\x80\x04\x95",
        b"\x1f\x8b\x08",
        b"BZh9",
        b"ftrt",
        b"\xa7\x0d\r\n\0\0\0\0",  # CPython 3.11
        b"\x93NUMPY\x01",
        bytes(257) + b"ustar\x0000",
    ],
)
def test_content_can_show_code(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(content)
    assert code_in("weights.bin", tmp_path / "weights.bin")


@pytest.mark.parametrize("content", [b"", ONNX, b"no\r\nyes\r\n", b"cat\ndog\n", bytes(300), b"\x80\x3f\0\0" * 100])
def test_content_can_leave_it_open(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(content)
    assert not code_in("weights.bin", tmp_path / "weights.bin")


def test_returning_code_is_distinguished_from_present_code(model: Path) -> None:
    there = code_execution.contents_of(model)
    config = model_config.parse('backend: "python"')
    assert len(code_execution.runs_for(2, config, there)) == 1
    assert code_execution.runs(config, Contents()) == frozenset()
