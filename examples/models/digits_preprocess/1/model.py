"""Decodes a picture of a digit and scales it to what the digit models take."""

import io

import numpy as np
import triton_python_backend_utils as pb_utils
from ink import fit, ink_of
from PIL import Image, UnidentifiedImageError

Image.MAX_IMAGE_PIXELS = 16_000_000


class TritonPythonModel:
    """`png`: one encoded picture for each row of the batch -> `image`: [1, 8, 8], 0 to 16."""

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        pictures = pb_utils.get_input_tensor_by_name(request, "png").as_numpy()
        try:
            images = [_image(content) for content in pictures.ravel()]
        except UnidentifiedImageError:
            return _refused("expected a PNG or JPEG file")
        except Image.DecompressionBombError:
            return _refused(f"expected at most {Image.MAX_IMAGE_PIXELS} pixels")
        except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken PNG
            return _refused(str(error))
        stacked = np.stack(images).reshape(-1, 1, 8, 8)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("image", stacked)])


def _refused(reason):
    """Return an error of the client, which is status 400 over HTTP."""
    error = pb_utils.TritonError(f"the picture cannot be decoded: {reason}", pb_utils.TritonError.INVALID_ARG)
    return pb_utils.InferenceResponse(error=error)


def _image(content: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as picture:
        return fit(ink_of(picture))
