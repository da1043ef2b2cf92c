"""Tensors that hold a picture, as browsers show them."""

import base64
import struct
import zlib
from collections.abc import Sequence

import pytest

from dashboard.rollouts.tensor_pictures import picture_of
from repository.core.tensors import Tensor


def points(address: str) -> tuple[int, int, list[int]]:
    """Width, height and the bytes of a PNG of ours."""
    content = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", content[16:24])
    length = struct.unpack(">I", content[33:37])[0]
    rows = zlib.decompress(content[41 : 41 + length])
    row = len(rows) // height
    return width, height, [one for at in range(height) for one in rows[at * row + 1 : (at + 1) * row]]


def test_numbers_are_points_between_black_and_white() -> None:
    numbers = [float(one) for one in range(64)]
    assert points(picture_of(Tensor("x", "FP32", (1, 1, 8, 8), numbers)))[2] == [one * 255 // 63 for one in range(64)]
    wide = Tensor("x", "UINT8", (1, 8, 16, 3), list(range(128)) * 3)
    assert points(picture_of(wide)) == (16, 8, list(range(128)) * 3)


def test_colours_that_stand_one_after_the_other_are_put_together() -> None:
    planes = Tensor("x", "UINT8", (3, 8, 8), [1] * 64 + [2] * 64 + [3] * 64)
    assert points(picture_of(planes))[2] == [1, 2, 3] * 64


def test_an_encoded_image_is_shown_as_it_is() -> None:
    assert picture_of(Tensor("x", "BYTES", (1,), [b"\xff\xd8\xff\xe0"])) == "data:image/jpeg;base64,/9j/4A=="


@pytest.mark.parametrize(
    ("datatype", "shape", "elements"),
    [
        ("FP32", (1, 10), [0.0] * 10),
        ("FP32", (1, 8, 768), [0.0] * 8 * 768),
        ("FP32", (1, 2, 2), [0.0] * 4),
        ("UINT8", (1, 0, 8, 8), []),
        ("BYTES", (1,), [b"<svg onload=alert(1)>"]),
        ("BYTES", (2,), [b"\xff\xd8\xff", b"\xff\xd8\xff"]),
        ("BYTES", (0,), []),
    ],
)
def test_what_is_no_picture_is_none(datatype: str, shape: tuple[int, ...], elements: Sequence[float | bytes]) -> None:
    assert picture_of(Tensor("x", datatype, shape, elements)) == ""


def test_numbers_that_are_not_finite_or_all_the_same_make_a_picture_too() -> None:
    odd = [float("nan"), float("inf"), float("-inf"), 1.0] * 16
    assert set(points(picture_of(Tensor("x", "FP32", (1, 8, 8), odd)))[2]) == {0}
