"""Changes by hand are found and described."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repository.files import drift, storage


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "digits"
    for version in ("1", "2"):
        (folder / version).mkdir(parents=True)
        (folder / version / "model.onnx").write_bytes(b"weights " + version.encode())
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    (folder / "labels.txt").write_text("zero")
    for path in folder.rglob("*.*"):
        os.utime(path, (1e9, 1e9))  # so that no change falls into the clock tick of what it changes
    return folder


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("change", "sentences"),
    [
        (lambda model: None, []),
        (lambda model: (model / "config.pbtxt").write_text("max_batch_size: 9"), ["config.pbtxt was edited."]),
        (lambda model: remove(model / "config.pbtxt"), ["config.pbtxt was removed."]),
        (
            lambda model: (model / "1/model.onnx").write_bytes(b"others! 1"),
            ["File model.onnx of version 1 was changed."],
        ),
        (lambda model: (model / "1/extra").touch(), ["File extra of version 1 was added."]),
        (lambda model: (model / "1/slipway.pbtxt").touch(), ["The overlay slipway.pbtxt of version 1 was added."]),
        (lambda model: remove(model / "labels.txt"), ["File labels.txt was removed."]),
        (lambda model: storage.remove_tree(model / "2"), ["Version 2 was removed."]),
        (lambda model: storage.copy_tree(model / "1", model / "5"), ["Version 5 was added."]),
        (lambda model: storage.copy_tree(model / "1", model / "1/__pycache__"), []),
        (lambda model: os.utime(model / "1/model.onnx", (1, 1)), []),
    ],
)
def test_a_change_by_hand_is_one_sentence(model: Path, change: Callable[[Path], object], sentences: list[str]) -> None:
    recorded = json.loads(json.dumps(drift.fingerprint(model)))
    change(model)
    assert drift.compare(recorded, drift.fingerprint(model, recorded)) == sentences


def test_files_of_the_same_size_and_time_are_not_read_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = drift.fingerprint(model)
    (model / "2/model.onnx").write_bytes(b"changed in size")
    read: list[str] = []
    monkeypatch.setattr(drift, "hash_file", lambda path: read.append(path.name) or storage.hash_file(path))
    drift.fingerprint(model, recorded)
    assert "config.pbtxt" in read
    assert read.count("model.onnx") == 1
