"""image_segmenter: the class of each pixel."""

from typing import Any

import torch

from .vision_handler import VisionHandler, image_transforms

_transforms = image_transforms()


class ImageSegmenter(VisionHandler):
    """Answers with a list of the shape [height, width, 2]: the most probable class of each pixel, and its probability."""

    image_processing = _transforms.Compose(
        [
            _transforms.Resize(256),
            _transforms.CenterCrop(224),
            _transforms.ToTensor(),
            _transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def postprocess(self, data: Any) -> list[Any]:
        """Return the classes in the output `out` of torchvision's segmentation models."""
        probabilities, classes = torch.max(torch.softmax(data["out"], dim=1), dim=1)
        return torch.stack((classes.to(probabilities.dtype), probabilities), dim=3).tolist()  # type: ignore[no-any-return]
