"""VisionHandler: handles requests with images, which are sent as bytes, in base64, or as lists of numbers.

It needs Pillow. A handler that is based on VisionHandler defines `image_processing`, which usually needs torchvision.
"""

import base64
import io
from abc import ABC
from functools import cached_property
from typing import Any

import torch

from ..context import Context
from ..handler_utils.timer import timed
from .base_handler import BaseHandler, attributes

TORCHVISION = (
    "this handler needs torchvision, which is not installed: run pip install torchvision in the server's environment, or name "
    "an environment that has it in the model's parameter EXECUTION_ENV_PATH"
)


def image_transforms() -> Any:
    """Return torchvision.transforms. If torchvision is missing, raise ImportError with the remedy."""
    try:
        from torchvision import transforms
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise
        raise ImportError(TORCHVISION) from None
    return transforms


class VisionHandler(BaseHandler, ABC):
    """The base class of handlers of images. `image_processing`: makes a tensor from a Pillow image."""

    image_processing: Any

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        if not context.system_properties.get("limit_max_image_pixels"):
            from PIL import Image

            Image.MAX_IMAGE_PIXELS = None

    @timed
    def preprocess(self, data: list[dict[str, Any]]) -> Any:
        """Return the images of a batch as one tensor."""
        images = []
        for row in data:
            image = row.get("data") or row.get("body")
            if isinstance(image, str):
                image = base64.b64decode(image)
            if isinstance(image, bytearray | bytes):
                from PIL import Image

                images.append(self.image_processing(Image.open(io.BytesIO(image))))
            else:
                images.append(torch.FloatTensor(image))
        return torch.stack(images).to(self.device)

    @cached_property
    def ig(self) -> Any:
        """Return captum's integrated gradients for the model."""
        return attributes().IntegratedGradients(self.model)

    def get_insights(self, tensor_data: Any, _: Any, target: int = 0) -> Any:
        """Return how much each pixel contributes to the class `target`, by integrated gradients."""
        return self.ig.attribute(tensor_data, target=target, n_steps=15).tolist()
