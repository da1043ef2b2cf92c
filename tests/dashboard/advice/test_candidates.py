"""The setting of a configuration, and the settings and configurations around it."""

import pytest

from dashboard.advice.candidates import batching_around, changes, instances_around, setting_of, with_setting
from dashboard.advice.simulation import Setting
from repository.config.document import Document

ONNX = 'name: "m" backend: "onnxruntime" max_batch_size: 8\n'
WAITING = "dynamic_batching { preferred_batch_size: [4, 2, 16] max_queue_delay_microseconds: 300 }\n"


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        (ONNX, Setting(False, 8, instances=2)),
        (ONNX + "dynamic_batching { }", Setting(True, 8, instances=2)),
        (ONNX + WAITING + "instance_group { count: 3 kind: KIND_CPU }", Setting(True, 8, (2, 4), 300_000, 3)),
        ('name: "m" backend: "python" dynamic_batching { }', Setting(False, 1)),
        ('name: "m" backend: "python" instance_group { } instance_group { count: 2 }', Setting(False, 1, instances=3)),
        (ONNX + "instance_group { count: 2 kind: KIND_GPU gpus: [0, 1] }", Setting(False, 8, instances=4)),
    ],
)
def test_a_configuration_has_a_setting(text: str, setting: Setting) -> None:
    assert setting_of(Document.read(text)) == setting


def test_on_a_gpu_one_instance_is_the_default() -> None:
    assert setting_of(Document.read(ONNX), gpus=1).instances == 1


@pytest.mark.parametrize(
    "wanted",
    [
        Setting(True, 8, (), 15_000_000, 2),
        Setting(True, 8, (4,), 0, 2),
        Setting(True, 16, (2, 4), 300_000, 2),
        Setting(True, 8, (2, 4), 300_000, 4),
    ],
)
@pytest.mark.parametrize("text", [ONNX, ONNX + WAITING, ONNX + WAITING + "instance_group { kind: KIND_CPU }\n"])
def test_the_configuration_of_a_setting_has_that_setting(text: str, wanted: Setting) -> None:
    document = Document.read("# kept\n" + text)
    present = setting_of(document)
    found = with_setting(document, present, wanted)
    assert setting_of(found) == wanted
    assert found.text.startswith("# kept\n")
    assert bool(changes(present, wanted)) == (found != document)


def test_the_rule_of_thumb_is_among_the_candidates() -> None:
    document = Document.read(ONNX)
    found = batching_around(document, setting_of(document), gap_ms=4.98, full_share=0.0)
    assert Setting(True, 8, (8,), 15_000_000, 2) in found
    assert all(one.max_rows == 8 for one in found)
    assert setting_of(document) not in found


def test_a_larger_batch_is_a_candidate_only_where_batches_are_full() -> None:
    document = Document.read(ONNX + WAITING)
    present = setting_of(document)
    assert 16 in {one.max_rows for one in batching_around(document, present, 5.0, full_share=0.9)}
    plan = Document.read(document.text.replace("onnxruntime", "tensorrt"))
    assert {one.max_rows for one in batching_around(plan, present, 5.0, full_share=0.9)} == {8}


def test_a_model_without_batches_has_no_batching_to_change() -> None:
    document = Document.read('name: "m" backend: "python"')
    assert batching_around(document, setting_of(document), 5.0, 0.0) == []


def test_instances_are_counted_on_one_device_only() -> None:
    plain = Document.read(ONNX)
    assert {one.instances for one in instances_around(plain, setting_of(plain))} == {3, 4}
    assert instances_around(plain, setting_of(plain, gpus=2), gpus=2) == []
    for groups in ("instance_group { } instance_group { }", "instance_group { kind: KIND_GPU gpus: [0, 1] }"):
        spread = Document.read(ONNX + groups)
        assert instances_around(spread, setting_of(spread, gpus=2), gpus=2) == []
