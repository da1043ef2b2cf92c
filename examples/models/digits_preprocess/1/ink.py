"""Turns a picture of a drawn digit into the 8 x 8 image that the digit models were trained on.

The UCI set was made by fitting a digit into a 32 x 32 bitmap and counting the inked pixels of each 4 x 4 block: 64 numbers from
0 (no ink) to 16 (all ink). This module does the same with the ink of any picture.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FULL = 16.0  # a block that is all ink
_BOX = 32  # the bitmap's side, in blocks of 4


def ink_of(picture: Image.Image) -> NDArray[np.float32]:
    """Return the ink of each pixel, from 0 to 1, in the shape [height, width].

    In a picture with transparency, opaque pixels are ink. Otherwise pixels that differ from the border are ink: light strokes
    on a dark background, or dark strokes on a light one.
    """
    if "A" in picture.getbands() and picture.getchannel("A").getextrema()[0] < 255:
        return np.asarray(picture.getchannel("A"), dtype=np.float32) / 255
    grey = np.asarray(picture.convert("L"), dtype=np.float32) / 255
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    return grey if np.median(border) < 0.5 else 1 - grey


def fit(ink: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the ink as 8 x 8 blocks from 0 to 16, with the digit centred and scaled to the image; zeros if there is no ink."""
    marked = ink > 0.3 * max(float(ink.max()), 1e-6)
    if ink.max() < 0.05:
        return np.zeros((8, 8), dtype=np.float32)
    rows, columns = np.flatnonzero(marked.any(axis=1)), np.flatnonzero(marked.any(axis=0))
    crop = Image.fromarray(ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1])
    scale = _BOX / max(crop.height, crop.width)
    size = (max(round(crop.width * scale), 1), max(round(crop.height * scale), 1))
    box = Image.new("F", (_BOX, _BOX))
    box.paste(crop.resize(size, Image.Resampling.BILINEAR), ((_BOX - size[0]) // 2, (_BOX - size[1]) // 2))
    blocks = np.asarray(box, dtype=np.float32).reshape(8, 4, 8, 4).mean(axis=(1, 3))
    return np.asarray(blocks * (FULL / blocks.max()), dtype=np.float32)
