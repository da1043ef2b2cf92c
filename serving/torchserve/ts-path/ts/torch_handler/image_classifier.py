"""image_classifier: the most probable classes of an image, with their probabilities."""

from typing import Any

import torch

from ..handler_utils.timer import timed
from ..utils.util import map_class_to_label
from .vision_handler import VisionHandler, image_transforms

_transforms = image_transforms()


class ImageClassifier(VisionHandler):
    """Answers with {label: probability} for the `topk` most probable classes."""

    topk = 5
    # The preprocessing with which ImageNet's models are trained.
    image_processing = _transforms.Compose(
        [
            _transforms.Resize(256),
            _transforms.CenterCrop(224),
            _transforms.ToTensor(),
            _transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )

    def set_max_result_classes(self, topk: int) -> None:
        self.topk = topk

    def get_max_result_classes(self) -> int:
        return self.topk

    @timed
    def postprocess(self, data: Any) -> list[Any]:
        probabilities, classes = torch.topk(torch.softmax(data, dim=1), min(self.topk, data.shape[1]), dim=1)
        return map_class_to_label(probabilities.tolist(), self.mapping, classes.tolist())
