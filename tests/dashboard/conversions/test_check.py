"""The answers of a converted model are compared with its source's: numbers, labels, scores, and shapes."""

from typing import Any

import numpy as np
import pytest

from dashboard.conversions.check import Verdict, compare

FP32 = {"outputs": [{"name": "y", "datatype": "FP32"}]}
SCORES = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.25, 0.5]])


def of(source: Any, converted: Any, **report: Any) -> Verdict:
    return compare({"y": np.array(source)}, {"y": np.array(converted)}, {**FP32, **report})


def test_equal_answers_are_accepted_with_both_numbers() -> None:
    verdict = of([[1.0], [2.0]], [[1.0], [2.0 + 2e-6]])
    assert (verdict.sentence, verdict.rows) == ("", 2)
    assert verdict.maximum == pytest.approx(2e-6)
    assert verdict.mean == pytest.approx(1e-6)


def test_a_difference_is_refused_in_one_sentence_with_both_numbers() -> None:
    assert of([[1.0], [2.0]], [[1.0], [2.5]]).sentence == (
        "output 'y' differs from the source's by 0.5 at most and 0.25 on average, where 0.0001 plus 0.1% of the value is "
        "allowed: choose another opset or datatype, or keep the source"
    )


@pytest.mark.parametrize(("precision", "sentence"), [("FP64", False), ("FP32", False), ("FP16", True), ("INT8", True)])
def test_the_tolerance_is_that_of_the_least_exact_datatype(precision: str, sentence: bool) -> None:
    assert (of([1.0, 3.0], [1.01, 3.01], precision=precision).sentence == "") is sentence


def test_a_model_that_answers_zero_is_no_good_copy_of_one_with_small_answers() -> None:
    assert of([2e-5, -3e-5], [0.0, 0.0]).sentence
    assert of([2e-5, -3e-5], [2e-5, -3e-5]).sentence == ""


def test_a_number_that_is_none_must_be_none_in_both() -> None:
    assert of([np.nan, np.inf, 1.0], [np.nan, np.inf, 1.0]).sentence == ""
    assert "1 numbers are NaN or infinite on one side alone" in of([np.nan, 1.0], [0.0, 1.0]).sentence
    assert of([np.inf, 1.0], [-np.inf, 1.0]).sentence


def test_scores_must_have_the_same_class_first() -> None:
    verdict = of(SCORES, SCORES[:, [1, 0, 2]], scores=["y"], precision="INT8")
    assert verdict.agreement == pytest.approx(1 / 3)
    assert "with another class first in 67% of the rows" in verdict.sentence


def test_labels_are_compared_as_texts_and_numbers() -> None:
    assert of(["a", "b"], ["a", "b"]).sentence == ""
    assert of([1, 2], ["1", "2"]).sentence == ""
    assert of(["a", "b"], ["a", "c"]).sentence.startswith("output 'y' differs from the source's in 50% of the rows")


def test_either_label_is_right_where_two_classes_have_the_same_score() -> None:
    scores = np.array([[0.5, 0.5], [0.9, 0.1]])
    report = {**FP32, "scores": ["p"]}
    assert compare({"y": np.array([0, 0]), "p": scores}, {"y": np.array([1, 0]), "p": scores}, report).sentence == ""
    assert compare({"y": np.array([0, 0]), "p": scores}, {"y": np.array([0, 1]), "p": scores}, report).sentence


def test_a_dimension_of_one_element_may_be_more_or_less() -> None:
    assert of([1.0, 2.0], [[1.0], [2.0]]).sentence == ""
    shapes = "output 'y' has the shape [3] where its source answers [2]"
    assert of([1.0, 2.0], [1.0, 2.0, 3.0]).sentence.startswith(shapes)


def test_an_output_that_is_missing_is_named() -> None:
    verdict = compare({"y": np.zeros(1), "z": np.zeros(1)}, {"y": np.zeros(1)}, FP32)
    assert verdict.sentence == "the converted model has no output z: choose another recipe"
    assert compare({}, {"y": np.zeros(1)}, FP32).sentence


def test_answers_that_are_all_alike_are_a_caution() -> None:
    assert "answers all sample rows alike" in of([1.0, 1.0], [1.0, 1.0]).caution
    assert of([1.0, 1.0, 2.0], [1.0, 1.0, 2.0]).caution == ""


def test_a_verdict_is_json() -> None:
    found = of(SCORES, SCORES, scores=["y"]).as_json()
    assert found["differences"] == [
        {"output": "y", "maximum": 0.0, "mean": 0.0, "agreement": 1.0, "within": True, "lost": 0}
    ]
    assert (found["maximum"], found["mean"], found["agreement"], found["rows"]) == (0.0, 0.0, 1.0, 3)
