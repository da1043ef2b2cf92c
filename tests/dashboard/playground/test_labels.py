"""Class names for people: from a model's own label file, or that of an ensemble's step; a bad file names nothing."""

from pathlib import Path

import pytest

from dashboard.models import Model, Version
from dashboard.playground.labels import output_labels

pytestmark = pytest.mark.django_db
CONFIG = 'backend: "onnxruntime" output [ {{ name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "{}" }} ]'


def model(root: Path, name: str, config: str, labels: bytes | None = b"cat\ndog\n") -> None:
    folder = root / "models" / name
    folder.mkdir()
    (folder / "config.pbtxt").write_text(config)
    if labels is not None:
        (folder / "labels.txt").write_bytes(labels)


def test_each_line_names_a_class(data_folder: Path) -> None:
    model(data_folder, "pets", CONFIG.format("labels.txt"))
    assert output_labels("pets") == {"y": ["cat", "dog"]}


def test_an_ensemble_has_the_names_of_the_step_that_makes_its_output(data_folder: Path) -> None:
    model(data_folder, "pets", CONFIG.format("labels.txt"))
    step = '{ model_name: "pets" model_version: -1 output_map { key: "y" value: "answer" } }'
    model(data_folder, "pipeline", f'platform: "ensemble" ensemble_scheduling {{ step [ {step} ] }}', None)
    assert output_labels("pipeline") == {"answer": ["cat", "dog"]}


def test_a_pipeline_that_holds_itself_ends(data_folder: Path) -> None:
    step = '{ model_name: "loop" model_version: -1 output_map { key: "y" value: "y" } }'
    model(data_folder, "loop", f'platform: "ensemble" ensemble_scheduling {{ step [ {step} ] }}', None)
    assert output_labels("loop") == {}


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        (CONFIG.format("labels.txt"), None),
        (CONFIG.format("labels.txt"), b"\xff\xfe"),
        (CONFIG.format("labels.txt"), b"x" * (2 << 20)),
        (CONFIG.format("../../secret"), b""),
        (CONFIG.format("/etc/passwd"), b""),
        ("not a configuration", b""),
    ],
)
def test_a_file_that_cannot_be_read_names_nothing(data_folder: Path, config: str, labels: bytes | None) -> None:
    (data_folder / "secret").write_text("cat\n")
    model(data_folder, "pets", config, labels)
    assert output_labels("pets") == {}
    assert output_labels("absent") == {}


def test_what_the_file_says_of_its_classes_names_them_unless_a_person_did(data_folder: Path) -> None:
    model(data_folder, "pets", 'backend: "onnxruntime" output [ { name: "y" } ]', None)
    row = Model.objects.create(name="pets")
    for number, names in ((1, ["cat", "dog"]), (2, ["cat", "dog", "owl"])):
        Version.objects.create(model=row, number=number, details={"class_names": {"y": names}})
    assert output_labels("pets") == {"y": ["cat", "dog", "owl"]}
    text = 'parameters { key: "slipway.class_names" value { string_value: "{\\"y\\": [\\"Katze\\", \\"Hund\\"]}" } }'
    (data_folder / "models" / "pets" / "config.pbtxt").write_text(text)
    assert output_labels("pets") == {"y": ["Katze", "Hund"]}
