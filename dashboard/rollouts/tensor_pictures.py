"""Turns tensors that hold a picture into images: an encoded image is not changed, and numbers become grey or coloured pixels.

The format is PNG (W3C) with the chunks IHDR, IDAT and IEND.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence

from repository.core.tensors import Tensor

MOST_BYTES = 1 << 20  # the largest encoded image
MOST_POINTS = 200_000  # the most numbers of a picture
_LEAST_SIDE = 8
_LONGEST = 4  # the largest ratio of a picture's sides; longer tensors are tables of numbers
_ENCODED = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


def picture_of(tensor: Tensor) -> str:
    """Return the first picture of a tensor as the address of an image; "" if the tensor holds none."""
    if tensor.datatype == "BYTES":
        return _encoded(tensor.elements[0]) if len(tensor.elements) == 1 else ""
    if len(tensor.shape) < 3 or tensor.datatype == "BOOL":
        return ""
    sizes = tensor.shape[-3:]
    channels, height, width = sizes if sizes[0] in (1, 3) else (sizes[2], sizes[0], sizes[1])
    sides = sorted((height, width))
    count = channels * height * width
    fits = channels in (1, 3) and sides[0] >= _LEAST_SIDE and sides[1] <= _LONGEST * sides[0]
    if not fits or not 0 < count <= min(MOST_POINTS, len(tensor.elements)):
        return ""
    points = _points(tensor, count)
    if sizes[0] == channels == 3:  # channels first: the colours are separate planes
        planes, points = points, bytearray(count)
        for colour in range(3):
            points[colour::3] = planes[colour * height * width : (colour + 1) * height * width]
    return _address("png", _png(points, width, height, channels))


def _encoded(element: object) -> str:
    if not isinstance(element, bytes) or len(element) > MOST_BYTES:
        return ""
    if element[:4] == b"RIFF" and element[8:12] == b"WEBP":
        return _address("webp", element)
    return next((_address(kind, element) for start, kind in _ENCODED.items() if element.startswith(start)), "")


def _points(tensor: Tensor, count: int) -> bytes | bytearray:
    """Return the first `count` numbers as bytes: UINT8 unchanged, others scaled so that their range becomes 0 to 255."""
    numbers: Sequence[float] = [float(one) for one in tensor.elements[:count]]
    if tensor.datatype == "UINT8":
        return bytes(map(int, numbers))
    finite = [one for one in numbers if math.isfinite(one)] or [0.0]
    least, most = min(finite), max(finite)
    scale = 255 / (most - least) if 0 < most - least < math.inf else 0.0
    return bytes(int((min(most, max(least, one)) - least) * scale) if one == one else 0 for one in numbers)


def _png(points: bytes | bytearray, width: int, height: int, channels: int) -> bytes:
    row = width * channels
    rows = b"".join(b"\0" + points[at * row : (at + 1) * row] for at in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
