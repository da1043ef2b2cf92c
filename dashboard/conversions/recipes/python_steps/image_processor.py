"""Makes the pixels that an image classifier takes of a PNG or JPEG file, as settings.json says."""

import io
import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image


class TritonPythonModel:
    """`image`: the bytes of one file for each row -> `pixel_values` float32 [3, height, width]."""

    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.settings = json.loads((folder / "settings.json").read_text())

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        try:
            pixels = np.stack([self._pixels(content) for content in rows.ravel()])
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(f"the image cannot be read: {error}", pb_utils.TritonError.INVALID_ARG)
            )
        return pb_utils.InferenceResponse([pb_utils.Tensor("pixel_values", pixels)])

    def _pixels(self, content):
        said = self.settings
        image = Image.open(io.BytesIO(content)).convert("RGB")
        if said.get("do_resize"):
            image = image.resize(self._size(image), said["resample"])
        array = np.asarray(image, np.float32)
        if said.get("do_center_crop"):
            array = self._cropped(array)
        if said.get("do_rescale"):
            array = array * np.float32(said["rescale_factor"])
        if said.get("do_normalize"):
            array = (array - np.array(said["image_mean"], np.float32)) / np.array(said["image_std"], np.float32)
        return array.transpose(2, 0, 1)

    def _size(self, image):
        size = self.settings["size"]
        if "shortest_edge" not in size:
            return size["width"], size["height"]
        wide, tall = image.size
        shortest = size["shortest_edge"]
        if wide <= tall:
            return shortest, int(shortest * tall / wide)
        return int(shortest * wide / tall), shortest

    def _cropped(self, array):
        tall, wide = self.settings["crop_size"]["height"], self.settings["crop_size"]["width"]
        top, left = (array.shape[0] - tall) // 2, (array.shape[1] - wide) // 2
        if top < 0 or left < 0:
            raise ValueError(f"it is smaller than {wide} x {tall} pixels")
        return array[top : top + tall, left : left + wide]
